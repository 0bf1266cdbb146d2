"""Terms: the one program that all four interpretations read, and how it is written.

``program`` is the syntax, with ``statement`` for its parts; ``access_map`` and
``layout`` say where values lie, ``expression`` and ``operation`` what is computed.  ``builder``
traces a machine's ``forward`` into a program; ``machine`` has the decisions, ``schedule`` one value
for each.  May import ``isa``.  Begin with ``program``.
"""
