"""Slots: how the rows of groups are dealt out to tiles, when only the device knows the groups.

The rows of a group are cut into blocks of B, the last one short, and each block has a *slot*, a
number of the grid: the blocks of the first group, then those of the second, and so on.  How many
there are depends on the groups' ends, which are in an array on the device, so the grid has as many
as any ends ask for: ``M // B + G`` for M rows in G groups.  Those that are left over are the last,
and have no rows.

**Lemma.** *Each row is in exactly one slot.*  Blocks cut the rows of a group, and groups the rows.
A group of r rows has ceil(r / B) <= r // B + 1 blocks; the sum of r // B is at most M // B.

Other numbers need no sum over the groups before, as s_i = b_i // B + i for a group that begins at
row b_i, and leave slots without rows in between.  A cluster that skips one is out of step with
those that share its tiles' inputs, which are no longer in L2 when the others ask: measured, up to
1.5 times as slow (docs/decisions.md).

>>> groups, sizes = Groups("g", "m", "ends"), {"g": 3, "m": 10}
>>> count = slots(groups, 4).evaluate(sizes)
>>> for slot in range(count):                                     # ends 3, 3, 10 and blocks of 4
...     known = {**sizes, "ends": (3, 3, 10), "bs": slot}
...     for name, expression in slot_values(groups, "bs", 4).items():
...         known[name] = expression.evaluate(known)
...     print(slot, known["which"], range(known["first"], min(known["first"] + 4, known["end"])))
0 0 range(0, 3)
1 2 range(3, 7)
2 2 range(7, 10)
3 2 range(10, 10)
4 2 range(10, 10)

Source: DeepGEMM's and CUTLASS's schedulers, which walk the groups one after another, too.
"""

from __future__ import annotations

from tinygpu.term.expression import Expression, alike, apply, value
from tinygpu.term.operation import Groups

__all__ = ["END", "FIRST", "GROUP", "cuts_groups", "slot_values", "slots"]

GROUP, FIRST, END = "which", "first", "end"
"""Tile values: the group of a slot, the first of its rows, and the end of the group's rows."""


def slots(groups: Groups, block: float) -> Expression:
    """Return how many slots there are, ``M // block + G``."""
    return (value(groups.rows) + 1).ceildiv(block) - 1 + value(groups.axis)


def slot_values(groups: Groups, slot: str, block: float) -> dict[str, Expression]:
    """Return the values of a tile in the slot that a variable of the grid counts."""
    group = apply("slot_group", value(groups.ends), value(groups.axis), block, value(slot))
    own = value(GROUP)
    begin, end = (apply("element", value(groups.ends), i) for i in (own - 1, own))
    end = apply("min", end, value(groups.rows))  # so that wrong ends store nothing outside
    before = apply("slots_before", value(groups.ends), block, own)
    first = begin + apply("max", value(slot) - before, 0) * block  # never below: bounds see it
    return {GROUP: group, END: end, FIRST: apply("min", first, value(END))}


def cuts_groups(groups: Groups, slot: str, block: float, values: dict[str, Expression]) -> bool:
    """Say whether tile values are those of slots of ``block`` rows, so that the lemma holds."""
    wanted = slot_values(groups, slot, block)
    return all(n in values and alike(values[n], e) for n, e in wanted.items())
