"""Exact search: the best k schedules of a whole legal space under the time model.

``best`` ranks; ``branch`` is branch and bound over batches, in two processes by ``pair`` and
``half``; ``scorer`` and ``least`` give times of points and bounds of parts.  May import ``time``.
Begin with ``best``.
"""
