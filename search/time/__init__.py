"""Time: what a term takes on a device, as a breakdown with a named bottleneck.

``cost`` is the entry: the (max, +) interpretation and what surrounds a tile.  ``work``, ``pattern``
and ``traffic`` say what statements ask of the units, ``pipeline``, ``recursion`` and
``asynchronous`` the same of terms with barriers.  ``timeline`` draws the same run.  ``fitted`` and
``fitted_pipeline`` hold the numbers that were chosen on measurements.  Begin with ``cost``.
"""
