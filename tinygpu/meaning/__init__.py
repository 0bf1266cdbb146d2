"""Meaning: what a term computes, on NumPy arrays.

``interpret`` executes a term under many interleavings and finds races, deadlocks and stale reads;
it shares no code with the judge.  ``cluster``, ``turns``, ``execution`` and ``transfers`` are its
parts, ``race`` what memory remembers.  ``identity`` asks whether a term computes its operation, in
the field of ``prime_field`` or the ring of ``exponential_ring`` (whole numbers modulo N:
``residues``), by the one run of ``canonical``; ``assumptions`` says when that is a proof.
``tolerance`` is the rule for floats, ``inputs`` are the numbers it is asked on.  May import
``legality``, ``term``, ``isa``.  Begin with ``interpret``.
"""
