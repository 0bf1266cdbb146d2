"""Lowering: one rule for each instruction, from a statement to PTX lines.

``lowering`` has what a thread does, ``warps`` what a warp does together, ``tensor`` and ``tcgen05``
what is done on tiles; ``fragments``, ``rows`` and ``exchange`` move what threads hold.  May import
``kernel``.  Begin with ``lowering``.
"""
