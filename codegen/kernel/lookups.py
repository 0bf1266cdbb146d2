"""Code of lookups: tile values that are read from an array of integers on the device.

Each thread that goes through tiles walks the groups for itself, from that of its tile before to
that of the next: tiles that follow one another are of groups near each other, mostly of the same
one, and then nothing is read.  A step to another group reads one end, which lies in L1.

Source: ``tinygpu.term.groups``; PTX ISA, "ld".
"""

from __future__ import annotations

from tinygpu.codegen.kernel.ptx import Scalar, Text

__all__ = ["GroupWalk"]


class GroupWalk:
    """Where a thread is among the groups: registers of a group, its rows, and its first slot.

    ``group`` has the rows from ``begin`` to ``end``, and the slots from ``before`` on.
    """

    def __init__(self, text: Text, array: str, count: Scalar, block: int) -> None:
        """Begin with the first group."""
        self._text, self._array, self._block = text, array, block
        self._last = text.subtract(count, 1)
        self.group, self.begin, self.end, self.before = (text.register("u32") for _ in range(4))
        for register in (self.group, self.begin, self.before):
            text.emit(f"mov.u32 {register}, 0")
        text.emit(f"ld.global.u32 {self.end}, [%p_{array}]")

    def to(self, slot: Scalar) -> None:
        """Go to the group of a slot: forward while it ends before, or back to one that has it."""
        text, last, more = self._text, self._last, self._text.register("pred")
        there, again = text.label("group"), text.label("next_group")
        back = text.label("group_before")
        after, place = text.register("u32"), text.register("u64")
        with text.scope():
            text.mark(again)
            self._slots(after)
            text.emit(f"setp.ge.u32 {more}, {slot}, {after}")
            text.emit(f"setp.lt.and.u32 {more}, {self.group}, {last}, {more}")
            text.emit(f"@!{more} bra {back}")
            text.emit(f"mov.u32 {self.before}, {after}")
            text.emit(f"mov.u32 {self.begin}, {self.end}")
            text.emit(f"add.u32 {self.group}, {self.group}, 1")
            text.emit(f"mad.wide.u32 {place}, {self.group}, 4, %p_{self._array}")
            text.emit(f"ld.global.u32 {self.end}, [{place}]")
            text.emit(f"bra {again}")
            text.mark(back)
            text.emit(f"setp.gt.u32 {more}, {self.group}, 0")  # always, where ends ascend
            text.emit(f"setp.lt.and.u32 {more}, {slot}, {self.before}, {more}")
            text.emit(f"@!{more} bra {there}")
            text.emit(f"sub.u32 {self.group}, {self.group}, 1")
            text.emit(f"mov.u32 {self.end}, {self.begin}")
            text.emit(f"mov.u32 {self.begin}, 0")
            text.emit(f"setp.gt.u32 {more}, {self.group}, 0")
            text.emit(f"mad.wide.u32 {place}, {self.group}, 4, %p_{self._array}")
            text.emit(f"@{more} ld.global.u32 {self.begin}, [{place}+-4]")
            self._slots(after, fewer=True)
            text.emit(f"mov.u32 {self.before}, {after}")
            text.emit(f"bra {back}")
            text.mark(there)

    def _slots(self, into: str, *, fewer: bool = False) -> None:
        """Set the slot behind the group's, or with ``fewer`` its first from the one behind."""
        text, block = self._text, self._block
        text.emit(f"sub.u32 {into}, {self.end}, {self.begin}")
        text.emit(f"add.u32 {into}, {into}, {block - 1}")
        text.emit(f"div.u32 {into}, {into}, {block}")
        text.emit(f"{'sub' if fewer else 'add'}.u32 {into}, {self.before}, {into}")
