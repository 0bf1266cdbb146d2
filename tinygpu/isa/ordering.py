"""Orderings: groups of what is under way, and fences, each in the file of its family.

A wait covers a *group*, or an arrival at an mbarrier does (``ARRIVALS``); after a *fence* others
see what was done.  Terms have their names, walks ask the values.

>>> from tinygpu.isa.instructions import GROUPS
>>> [name for name, group in GROUPS.items() if group.holds]
['wgmma', 'tcgen05.ld', 'tcgen05.st']

Source: PTX ISA 9, 9.7.9.25 (copies), 9.7.13 (fences), 9.7.15 (wgmma), 9.7.16 (tcgen05).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tinygpu.isa.instruction import Completion

__all__ = ["By", "FenceKind", "Group"]

By = Literal["", "all", "warps", "one"]


@dataclass(frozen=True, slots=True)
class FenceKind:
    """A kind of fence; in code ``qualifiers`` follow what ``ptx`` calls it.

    ``needs``: what a machine has to have for it.  ``by``: who executes it, as of a statement.
    ``orders``: what was written, before what another "proxy" does; what was done to "registers",
    before products; what was done in tensor memory, "before" others are told, or "after" being so.
    """

    name: str
    ptx: str
    needs: str
    orders: Literal["proxy", "registers", "before", "after"]
    by: By = ""
    qualifiers: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """What is under way together; ``ptx`` begins its commit and ``wait``, ``qualifiers`` follow.

    ``completion``: that of its instructions; ``into``: the level they write, where groups share it.
    ``needs``: what a machine has to have for it.  ``by``: who executes what is of it.
    ``committed``: a commit ends it; else what observes it covers all.  ``holds``: what of registers
    is in use until then.  ``read``: a wait may be for its reading alone.  ``fence``: what tells
    others of it after the wait; None: the thread does.
    """

    name: str
    completion: Completion
    ptx: str
    needs: str
    by: By = ""
    into: str = ""
    wait: str = "wait_group"
    qualifiers: str = ""
    committed: bool = True
    holds: Literal["", "sums", "rows"] = ""
    read: bool = False
    fence: FenceKind | None = None
