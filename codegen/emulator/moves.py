"""Data movement: mov, ld, st, atom, red, cvta, selp and what only hints.

Source: PTX ISA 9.0, section 9.7.9 (data movement) and 9.7.13 (atom, red).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from . import spaces
from .arithmetic import of_type
from .atomics import RUNNING, UPDATES, in_turn, rounds
from .clocks import ALL_BEFORE
from .decoder import Act, Action, Builder, Decoder, operation
from .forms import runs_on
from .memory import LOCAL, PARAM, SHARED
from .parser import Instruction
from .report import Array
from .run import Group, Run
from .scopes import semantics
from .values import PACKED, TYPES

__all__ = ["TABLE", "hint", "space_of"]

_WINDOWS = {"shared": SHARED, "local": LOCAL, "param": PARAM, "global": 0, "const": 0}


def _mov(d: Decoder, i: Instruction) -> Action:
    kind = i.parts[-1]
    to, of = i.operands
    if kind != "pred" and (to.startswith("{") or of.startswith("{")):
        return _pack(d, kind, to, of)
    read, write = d.source(of, kind), d.target(to, kind)
    return lambda run, group: write(run, group, read(run, group))


def _pack(d: Decoder, kind: str, to: str, of: str) -> Action:
    """``mov.b32 {a, b}, c`` and back: the first part is the lowest."""
    width = TYPES[kind].itemsize
    parts = d.listed(of if of.startswith("{") else to)
    part = f"b{8 * width // max(1, len(parts))}"
    if part not in TYPES or 8 * width % len(parts):
        raise d.error(f"{len(parts)} parts of {8 * width} bits")
    for name in parts:
        if name in d.numbers and d.widths[d.numbers[name]] * len(parts) != width:
            raise d.error(f"{name} is no {width // len(parts)} B, a part of {width}")
    whole = f"b{8 * width}"
    small, big = TYPES[part], TYPES[whole]
    if of.startswith("{"):
        join, write = d.vector(of, part), d.target(to, whole)
        return lambda run, group: write(run, group, join(run, group).view(big)[:, 0])
    read, writes = d.source(of, whole), d.vector_target(to, part)

    def unpack(run: Run, group: Group) -> None:
        held = np.ascontiguousarray(np.broadcast_to(read(run, group), (group.size,)))
        writes(run, group, held.view(small).reshape(group.size, -1))

    return unpack


def space_of(d: Decoder, i: Instruction) -> str:
    """Return the space that an instruction names, else generic; notes the width it touches."""
    parts = i.parts
    if "shared::cluster" in parts:
        return "cluster"
    for name in ("shared", "global", "local", "param"):
        if name in parts or f"{name}::cta" in parts or f"{name}::entry" in parts:
            return name
    return "global" if "const" in parts else "generic"


def _shape(d: Decoder, i: Instruction, space: str) -> int:
    lanes = next((int(p[1:]) for p in i.parts if re.fullmatch(r"v[248]", p)), 1)
    width = lanes * TYPES[i.parts[-1]].itemsize
    if width > 16 and (width > 32 or space not in ("global", "generic")):
        raise d.error(f"{width} B at once; 16 are the most, 32 in global memory")
    if width > 16 and d.parsed.target and not runs_on("100", d.parsed.target):
        raise d.error(f"{width} B at once need .target sm_100, not {d.parsed.target}")
    d.touch(min(width, 16), space)
    return lanes


def _ld(d: Decoder, i: Instruction) -> Action:
    space, kind = space_of(d, i), i.parts[-1]
    lanes, dtype = _shape(d, i, space), TYPES[kind]
    at, write = d.address(i.operands[1]), d.vector_target(i.operands[0], kind)
    how = semantics(i)

    def load(run: Run, group: Group) -> None:
        for here, values in spaces.read(run, space, group, at(run, group), dtype, lanes, how):
            write(run, here, values)

    return load


def _st(d: Decoder, i: Instruction) -> Action:
    space, kind = space_of(d, i), i.parts[-1]
    _shape(d, i, space)
    at, read = d.address(i.operands[0]), d.vector(i.operands[1], kind)
    how = semantics(i)
    return lambda run, group: spaces.write(
        run, space, group, at(run, group), read(run, group), None, how
    )


def _atom(d: Decoder, i: Instruction) -> Action:
    """Atom and red: threads that meet at one address come one after the other, in thread order."""
    parts = [p for p in i.parts if p != "noftz"]
    kind, space = parts[-1], space_of(d, i)
    lanes, dtype = _shape(d, i, space), TYPES[kind]
    returns = parts[0] == "atom"
    operation = next(p for p in parts[1:] if p in UPDATES or p == "cas")
    packed = TYPES[PACKED[kind]] if kind in PACKED else dtype
    each = dtype.itemsize // packed.itemsize
    write = d.vector_target(i.operands[0], kind) if returns else None
    at = d.address(i.operands[returns])
    given = [d.vector(o, kind) for o in i.operands[1 + returns :][: 1 + (operation == "cas")]]
    how = semantics(i)

    def apply(run: Run, group: Group) -> None:
        values = [read(run, group) for read in given]
        olds = np.zeros((group.size, lanes), dtype)

        def update(data: Array, first: Array, which: Any, new: Array) -> None:
            if not returns and operation in RUNNING:
                parts = lanes * each
                index = (first * each)[:, None] + np.arange(parts)
                RUNNING[operation].at(data.view(packed), index, new.view(packed))
            elif lanes == 1 and packed is dtype:
                other = values[1][which, 0] if operation == "cas" else None
                olds[which, 0] = in_turn(data, first, operation, new[:, 0], other)
            else:
                index, found = first[:, None] + np.arange(lanes), np.empty_like(new)
                for row in rounds(first):
                    before = found[row] = data[index[row]]
                    after = UPDATES[operation](before.view(packed), new[row].view(packed))
                    data[index[row]] = after.astype(packed).view(dtype)
                olds[which] = found

        spaces.write(run, space, group, at(run, group), values[0], update, how)
        if write is not None:
            write(run, group, olds)

    return apply


def _cvta(i: Instruction, dtype: np.dtype[Any], a: Array) -> Any:
    space = next(p for p in i.parts if p.split("::")[0] in _WINDOWS).split("::")[0]
    start = dtype.type(_WINDOWS[space])
    return a - start if "to" in i.parts else a + start


def _isspacep(d: Decoder, i: Instruction) -> Action:
    start = _WINDOWS[i.parts[1].split("::")[0]] >> 40
    if d.kernel.registers.get(i.operands[1]) == "pred":
        raise d.error(f"{i.operands[1]} is a .pred, an address is needed")
    known = [w >> 40 for w in (SHARED, LOCAL, PARAM)]
    read, write = d.source(i.operands[1], "u64"), d.target(i.operands[0], "pred")

    def test(run: Run, group: Group) -> None:
        window = read(run, group) >> np.uint64(40)
        write(run, group, window == start if start else ~np.isin(window, known))

    return test


def hint(d: Decoder, i: Instruction) -> Action:
    """Return what executes an instruction that only hints."""
    return lambda run, group: None


def _dependent(run: Run, group: Group, i: Instruction) -> None:
    """Let threads that wait know all that the kernel before did."""
    for domain, agents in run.by_domain(group) if "wait" in i.parts else ():
        run.clocks.learn(domain, agents, ALL_BEFORE)


def _nanosleep(run: Run, group: Group, i: Instruction, times: Array) -> None:
    """Let clocks grow by the longest sleep of the threads; nobody waits."""
    run.elapsed += int(times.max())


def _mapa(i: Instruction, dtype: np.dtype[Any], at: Array, rank: Array) -> Array:
    generic = dtype.type(SHARED if "shared::cluster" not in i.parts else 0)
    inside = (at - generic) & dtype.type(0xFFFFFF)
    there: Array = inside | (rank.astype(dtype) << dtype.type(24)) | generic
    return there


def _rank(
    run: Run, group: Group, i: Instruction, write: Act, addresses: Array
) -> None:  # fmt: skip
    """Write the CTA in whose shared memory an address lies: getctarank."""
    start = SHARED if "shared::cluster" not in i.parts else 0
    at = addresses.astype(np.int64) - start
    write(group, at >> 24 if run.cluster > 1 else group.threads * 0)


def _policy(d: Decoder, i: Instruction) -> Action:
    write = d.target(i.operands[0], "b64")
    return lambda run, group: write(run, group, np.uint64(0))


TABLE: Mapping[str, Builder] = {
    "mov": _mov,
    **dict.fromkeys(("ld", "ldu"), _ld),
    "st": _st,
    **dict.fromkeys(("atom", "red"), _atom),
    "cvta": of_type(_cvta),
    "isspacep": _isspacep,
    "mapa": of_type(_mapa),
    "getctarank": operation(_rank),
    **dict.fromkeys(("prefetch", "prefetchu", "discard", "applypriority"), hint),
    "griddepcontrol": operation(_dependent),
    "nanosleep": operation(_nanosleep),
    **{f"createpolicy.{how}": _policy for how in ("fractional", "range", "cvt")},
}
"""This family's builders by entry."""
