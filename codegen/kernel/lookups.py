"""Code of lookups: tile values that are read from an array of integers on the device.

All threads that have a tile's values read them for themselves, in the order of the expression: the
array is small and lies in L1 after the first tile.  The group of a slot is a binary search, as
``ends[j] // block + j`` grows with j: of G groups it takes log2 G loads, one after another.

Source: ``tinygpu.term.groups``; PTX ISA, "ld".
"""

from __future__ import annotations

from tinygpu.codegen.kernel.ptx import Scalar, Text

__all__ = ["element", "slot_group"]


def element(text: Text, array: str, index: Scalar) -> Scalar:
    """Return an element of an array of i32, 0 before its first; ``index`` is below its length."""
    if isinstance(index, int) and index < 0:
        return 0
    found, there = text.register("u32"), text.register("pred")
    text.emit(f"mov.u32 {found}, 0")
    text.emit(f"setp.ge.s32 {there}, {index}, 0")
    place = _place(text, array, index)
    text.emit(f"@{there} ld.global.u32 {found}, [{place}]")
    return found


def slot_group(text: Text, array: str, count: Scalar, block: int, slot: Scalar) -> Scalar:
    """Return the group of a slot of ``block`` rows: how many later groups begin no later."""
    low, high, middle, begin = (text.register("u32") for _ in range(4))
    after, more = text.register("pred"), text.register("pred")
    again, end = text.label("group"), text.label("group_end")
    text.emit(f"mov.u32 {low}, 0")
    text.emit(f"mov.u32 {high}, {text.subtract(count, 1)}")
    with text.scope():
        text.emit(f"setp.ge.u32 {more}, {low}, {high}")
        text.emit(f"@{more} bra {end}")
        text.mark(again)
        text.emit(f"add.u32 {middle}, {low}, {high}")
        text.emit(f"shr.u32 {middle}, {middle}, 1")
        place = _place(text, array, middle)
        text.emit(f"ld.global.u32 {begin}, [{place}]")
        text.emit(f"div.u32 {begin}, {begin}, {block}")
        text.emit(f"add.u32 {begin}, {begin}, {middle}")  # less 1, as group j + 1 begins there
        text.emit(f"setp.lt.u32 {after}, {begin}, {slot}")
        text.emit(f"@{after} add.u32 {low}, {middle}, 1")
        text.emit(f"@!{after} mov.u32 {high}, {middle}")
        text.emit(f"setp.lt.u32 {more}, {low}, {high}")
        text.emit(f"@{more} bra {again}")
        text.mark(end)
    return low


def _place(text: Text, array: str, index: Scalar) -> str:
    """Return the address of an element of 4 B."""
    place = text.register("u64")
    text.emit(f"mul.wide.s32 {place}, {index}, 4")
    text.emit(f"add.u64 {place}, {place}, %p_{array}")
    return place
