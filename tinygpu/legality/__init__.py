"""Legality: which terms may run, on which device, and why not.

A *law* (``law``) is one named condition with its source and its mend; ``laws`` is their table, the
``*_laws`` modules are its rows by subject.  ``reach`` says which coordinates an access touches,
``placement`` where they fall, ``resources`` what a term takes of a device.  ``concurrency`` is the
judge of deadlocks and races.  May import ``term``, ``isa`` and ``devices``.  Begin with ``laws``.
"""
