"""Spaces: the admissible schedules of a machine for a problem on a device.

``space`` is the object: counted, sampled, explained.  ``batches`` builds the term of each
structural choice with all numbers open, and its laws as tables; ``counting`` counts and samples
them. ``questions`` asks and proves with ``wishes`` and ``quantities``; ``solve`` is the one home of
z3. ``measurement`` is what was found about a schedule.  May import ``legality``, ``term``, ``isa``
and ``devices``.  Begin with ``space``.
"""
