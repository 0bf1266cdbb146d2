"""Rules: from a statement to PTX lines, in files of the names that families have in ``isa``.

A rule is given the kernel in the making, the statement and the loop variables.  ``rows`` move what
tcgen05.ld loads, ``descriptors`` say where a tile lies.  ``RULES`` of ``codegen/emit.py`` is their
table.  May import ``kernel``.  Begin with ``cp_async``.
"""
