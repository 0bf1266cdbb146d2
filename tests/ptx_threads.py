"""One thread of a PTX kernel, run in Python: its integers are computed, all else it does is told.

Shared addresses are as on the machine: those of a cluster have the CTA's rank in the upper bits.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["RANK", "SMEM", "Event", "of_rank", "run"]

SMEM = 3 << 10  # where a CTA's dynamic shared memory starts
RANK = 24
_MASK, _SIGN = (1 << 32) - 1, 1 << 31
_COMPARE = {"lt": operator.lt, "gt": operator.gt, "eq": operator.eq, "ne": operator.ne}
_LINE = re.compile(r"(?:@(!?)(%\w+) )?([\w.:]+)(?: (.*))?;")
_LONGEST = 200_000


@dataclass(frozen=True, slots=True)
class Event:
    """An instruction that is no arithmetic, with the values of its operands."""

    opcode: str
    operands: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Line:
    unless: bool
    guard: str
    opcode: str
    operands: tuple[Any, ...]


def of_rank(rank: int) -> int:
    """The start of a CTA's shared memory, in its cluster's addresses."""
    return SMEM | rank << RANK


def _signed(x: int) -> int:
    return (x & _MASK) - ((x & _SIGN) << 1)


_ARITHMETIC: Mapping[str, Callable[..., int]] = {
    "mov.u32": lambda a: a,
    "add.s32": lambda a, b: a + b,
    "add.u32": lambda a, b: a + b,
    "sub.s32": lambda a, b: a - b,
    "mul.lo.s32": lambda a, b: a * b,
    "mad.lo.s32": lambda a, b, c: a * b + c,
    "shl.b32": lambda a, b: a << b,
    "shr.u32": lambda a, b: (a & _MASK) >> b,
    "and.b32": operator.and_,
    "xor.b32": operator.xor,
    "div.u32": lambda a, b: (a & _MASK) // (b & _MASK),
    "rem.u32": lambda a, b: (a & _MASK) % (b & _MASK),
    "min.u32": lambda a, b: min(a & _MASK, b & _MASK),
    "min.s32": lambda a, b: min(_signed(a), _signed(b)),
    "max.s32": lambda a, b: max(_signed(a), _signed(b)),
    "cvt.u16.u32": lambda a: a & 0xFFFF,
}
_WIDE: Mapping[str, Callable[..., Any]] = {
    "mov.b64": lambda a: a,
    "selp.b64": lambda a, b, p: a if p else b,
    "cvta.param.u64": lambda a: a,
    "cvta.to.global.u64": lambda a: a,
    "cvt.u64.u32": lambda a: a & _MASK,
    "or.b64": operator.or_,
    "add.s64": lambda a, b: a + b,
    "mul.wide.s32": lambda a, b: _signed(a) * _signed(b),
    "mad.wide.s32": lambda a, b, c: _signed(a) * _signed(b) + c,
    "mapa.shared::cluster.u32": lambda a, rank: a & ((1 << RANK) - 1) | rank << RANK,
}


def _split(text: str) -> list[str]:
    """The parts between commas that stand in no bracket."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _operand(text: str) -> Any:
    """A number, a name, a tuple for what braces or brackets list, a list for what is added."""
    if text[0] in "{[":
        parts = _split(text[1:-1])
        if text[0] == "{" or len(parts) > 1:
            return tuple(map(_operand, parts))
        return [_operand(part) for part in parts[0].split("+")]
    return int(text, 0) if re.fullmatch(r"-?\d+|0x[0-9a-f]+", text) else text


@functools.lru_cache(64)
def _parsed(text: str) -> tuple[tuple[_Line, ...], dict[str, int]]:
    lines: list[_Line] = []
    labels: dict[str, int] = {}
    for raw in text[text.index("\n{\n") + 3 :].splitlines():
        line = raw.strip()
        if line.endswith(":"):
            labels[line[:-1]] = len(lines)
        elif match := _LINE.fullmatch(line):
            unless, guard, opcode, rest = match.groups()
            if opcode in (".reg", ".pragma"):
                continue
            parts = _split(rest) if rest else []
            lines.append(_Line(bool(unless), guard or "", opcode, tuple(map(_operand, parts))))
        elif line != "}" and not line.startswith(("//", ".reg", ".pragma")):
            raise AssertionError(f"no line of PTX: {line}")
    return tuple(lines), labels


def run(
    text: str, thread: int, parameters: Mapping[str, int], *, rank: int = 0, cluster: int = 0,
    clusters: int = 1,
) -> list[Event]:  # fmt: skip
    """What a thread of the CTA ``rank`` of a cluster does; every wait is over at once."""
    lines, labels = _parsed(text)
    held: dict[str, Any] = {
        "%tid.x": thread, "%ctaid.x": cluster, "%nctaid.x": clusters, "%clusterid.x": cluster,
        "%nclusterid.x": clusters, "%cluster_ctarank": rank, "smem": of_rank(rank), "_": None,
    }  # fmt: skip
    sums: dict[tuple[str, ...], int] = {}

    def value(operand: Any) -> Any:
        match operand:
            case int():
                return operand
            case str():
                return held.get(operand, operand)
            case tuple():
                return tuple(map(value, operand))
            case list():
                return value(operand[0]) if len(operand) == 1 else sum(map(value, operand))
        raise AssertionError(operand)

    events: list[Event] = []
    at = 0
    for _ in range(_LONGEST):
        line = lines[at]
        at += 1
        if line.guard and held[line.guard] is line.unless:
            continue
        op, operands = line.opcode, line.operands
        if op == "ret":
            return events
        if op == "bra":
            at = labels[operands[0]]
        elif op in _ARITHMETIC:
            held[operands[0]] = _ARITHMETIC[op](*map(value, operands[1:])) & _MASK
        elif op in _WIDE:
            held[operands[0]] = _WIDE[op](*map(value, operands[1:]))
        elif op.startswith("ld.param"):
            held[operands[0]] = parameters[operands[1][0]]
        elif op.startswith("setp"):
            a, b, *also = map(value, operands[1:])
            whole = all(also) and _COMPARE[op.split(".")[1]](_signed(a), _signed(b))
            held[operands[0]] = whole
        elif op == "mov.b32":  # two halves of a pair
            held |= dict(zip(operands[0], value(operands[1]), strict=True))
        elif op.startswith("cvt.rn."):
            events.append(Event(op, ()))
            held[operands[0]] = (value(operands[2]), value(operands[1]))  # the upper one is first
        elif op.startswith("mbarrier.try_wait"):
            held[operands[0]] = True
            events.append(Event(op, tuple(map(value, operands[1:]))))
        elif op.startswith("wgmma.mma"):
            number = sums.setdefault(operands[0], len(sums))
            held |= {name: (number, i) for i, name in enumerate(operands[0])}
            events.append(Event(op, (len(operands[0]), *map(value, operands[1:]))))
        else:
            events.append(Event(op, tuple(map(value, operands))))
    raise AssertionError(f"thread {thread} is not done after {_LONGEST} instructions")
