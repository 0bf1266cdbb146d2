"""A CTA of warps that never diverge, run in NumPy: the PTX that the machine ``ampere`` becomes.

Registers are arrays over the threads; a branch has to be the same for all.  cp.async lands at the
wait that covers it; shared memory that nobody wrote holds NaN.  Of 16-bit types there is bf16.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

__all__ = ["run_cta"]

_LINE = re.compile(r"(?:@(!?)(%\w+) )?([\w.:]+)(?: (.*))?;")
_MASK = np.int64(0xFFFFFFFF)
_BASE = 1 << 34
_NAN = 0x7FC0
Array = Any


def _signed(x: Array) -> Array:
    return ((np.asarray(x, np.int64) & _MASK) ^ (1 << 31)) - (1 << 31)


_INTEGER: Mapping[str, Callable[..., Array]] = {
    "add.s32": lambda a, b: _signed(a + b),
    "sub.s32": lambda a, b: _signed(a - b),
    "mul.lo.s32": lambda a, b: _signed(a * b),
    "mad.lo.s32": lambda a, b, c: _signed(a * b + c),
    "shl.b32": lambda a, b: _signed(a << b),
    "shr.u32": lambda a, b: (a & _MASK) >> b,
    "and.b32": lambda a, b: _signed(a & b),
    "xor.b32": lambda a, b: _signed(a ^ b),
    "div.u32": lambda a, b: (a & _MASK) // (b & _MASK),
    "min.u32": lambda a, b: np.minimum(a & _MASK, b & _MASK),
    "add.s64": lambda a, b: a + b,
    "mul.wide.s32": lambda a, b: a * b,
    "mad.wide.s32": lambda a, b, c: a * b + c,
}


class _Cta:
    def __init__(
        self, text: str, cta: int, threads: int, arrays: list[Array], integers: list[int]
    ) -> None:
        body = text[text.index("{\n") :]
        self.lines = [x.strip() for x in body.splitlines()]
        self.labels = {x[:-1]: i for i, x in enumerate(self.lines) if x.endswith(":")}
        names = re.findall(r"\.param \.\w+ (\w+)", text)
        given = [*(_BASE * (1 + i) for i in range(len(arrays))), *integers]
        self.parameters = dict(zip(names, given, strict=True))
        self.arrays = [a.reshape(-1).view(np.uint8) for a in arrays]
        self.threads, self.lane = threads, np.arange(threads)
        self.registers: dict[str, Array] = {"%tid.x": self.lane, "%ctaid.x": np.int64(cta)}
        self.shared = np.full(1 << 17, _NAN, np.uint16).view(np.uint8)
        self.open: list[tuple[Array, Array]] = []
        self.groups: list[list[tuple[Array, Array]]] = []

    def run(self) -> None:
        at = 0
        while at < len(self.lines):
            found = _LINE.fullmatch(self.lines[at])
            at += 1
            if not found or found[3].startswith("."):
                continue
            unless, guard, opcode, rest = found.groups()
            active = np.ones(self.threads, bool)
            if guard:
                active = np.broadcast_to(self.registers[guard] ^ bool(unless), self.threads)
            if opcode in ("bra", "ret"):
                assert active.all() or not active.any(), "warps diverge"
                if active.any():
                    at = self.labels[rest] if opcode == "bra" else len(self.lines)
            elif active.any():
                operands = [o.strip() for o in re.split(r",(?![^{\[]*[}\]])", rest or "")]
                self.step(opcode, operands, active)

    def value(self, name: str) -> Array:
        if name.startswith("0f"):
            return np.array(int(name[2:], 16), np.uint32).view(np.float32)
        if name == "smem":
            return np.int64(1024)
        return self.registers[name] if name.startswith("%") else np.int64(int(name))

    def set(self, name: str, value: Array, active: Array) -> None:
        old = self.registers.get(name)
        if active.all() or old is None:
            self.registers[name] = np.broadcast_to(value, self.threads)
        else:
            self.registers[name] = np.where(active, value, old)

    def address(self, text: str) -> Array:
        base, _, offset = text.strip("[]").partition("+")
        return np.broadcast_to(self.value(base) + int(offset or 0), self.threads)

    def memory(self, address: Array) -> tuple[Array, Array]:
        """The bytes that an address is of, and where there; those of a thread that is inactive may
        lie anywhere."""
        number = int(address.flat[0]) // _BASE
        start = number * _BASE if number else 1024
        return (self.arrays[number - 1] if number else self.shared), address - start

    def load(self, address: Array, count: int, dtype: Any) -> Array:
        memory, at = self.memory(address)
        assert (at >= 0).all()
        assert (at + count <= memory.size).all()
        assert (at % count == 0).all()
        return memory[at[:, None] + np.arange(count)].view(dtype)

    def store(self, address: Array, value: Array) -> None:
        memory, at = self.memory(address)
        raw = np.ascontiguousarray(value).view(np.uint8).reshape(at.size, -1)
        assert (at >= 0).all()
        assert (at % raw.shape[1] == 0).all()
        memory[at[:, None] + np.arange(raw.shape[1])] = raw

    def step(self, opcode: str, operands: list[str], active: Array) -> None:
        kind = opcode.split(".")[0]
        to, *sources = operands
        if opcode in _INTEGER:
            self.set(to, _INTEGER[opcode](*map(self.value, sources)), active)
        elif opcode == "mov.b32" and to.startswith("{"):
            both = np.asarray(self.value(sources[0]), np.uint32)
            for i, part in enumerate(_listed(to)):
                self.set(part, (both >> np.uint32(16 * i)) & np.uint32(0xFFFF), active)
        elif kind in ("mov", "cvta"):
            self.set(to, self.value(sources[0]), active)
        elif opcode.startswith("ld.param"):
            self.set(to, np.int64(self.parameters[sources[0].strip("[]")]), active)
        elif kind == "setp":
            a, b = (self.value(s) for s in sources[:2])
            less = {"lt": np.less, "gt": np.greater, "eq": np.equal}[opcode.split(".")[1]](a, b)
            self.set(to, less & self.value(sources[2]) if ".and" in opcode else less, active)
        elif kind == "selp":
            a, b, p = (self.value(s) for s in sources)
            self.set(to, np.where(p, a, b), active)
        elif opcode.startswith("cvt.rn.bf16x2"):
            high, low = (self.value(s).astype(ml_dtypes.bfloat16).view(np.uint16) for s in sources)
            self.set(to, high.astype(np.uint32) << 16 | low, active)
        elif opcode.startswith("cp.async.cg"):
            taken = np.broadcast_to(self.value(sources[2]) if len(sources) > 2 else 16, active.size)
            data = np.zeros((active.size, 16), np.uint8)
            some = taken == 16
            if some.any():
                data[some] = self.load(self.address(sources[0])[some], 16, np.uint8)
            self.open.append((self.address(to), data))
        elif opcode == "cp.async.commit_group":
            self.groups.append(self.open)
            self.open = []
        elif opcode == "cp.async.wait_group":
            covered = len(self.groups) - int(to)
            for address, data in [c for g in self.groups[: max(covered, 0)] for c in g]:
                self.store(address, data)
            del self.groups[: max(covered, 0)]
        elif kind == "ldmatrix":
            self.ldmatrix(_listed(to), self.address(sources[0]), "trans" in opcode)
        elif kind == "mma":
            self.mma(*(_listed(o) for o in operands))
        elif kind in ("ld", "st"):
            self.move(kind == "ld", opcode, operands, active)
        elif kind == "red":
            memory, at = self.memory(self.address(to)[active])
            floats = memory.view(np.float32)
            np.add.at(floats, at // 4, np.broadcast_to(self.value(sources[0]), active.size)[active])
        else:
            assert kind == "bar", opcode

    def move(self, loads: bool, opcode: str, operands: list[str], active: Array) -> None:
        where, held = reversed(operands) if loads else operands
        width = int(re.findall(r"\d+$", opcode)[0]) // 8
        dtype = {2: np.uint16, 4: np.float32 if opcode.endswith("f32") else np.uint32}[width]
        parts = _listed(held)
        address = self.address(where)[active]
        if loads:
            got = self.load(address, width * len(parts), dtype)
            for i, part in enumerate(parts):
                whole = np.zeros(active.size, dtype)
                whole[active] = got[:, i]
                self.set(part, whole, active)
            return
        columns = [np.broadcast_to(self.value(p), active.size)[active] for p in parts]
        self.store(address, np.stack(columns, 1).astype(dtype))

    def ldmatrix(self, targets: list[str], address: Array, turned: bool) -> None:
        rows = self.load(address, 16, np.uint16).reshape(-1, 4, 8, 8)  # warp, matrix, row, column
        for i, target in enumerate(targets):
            matrix = rows[:, i].swapaxes(1, 2) if turned else rows[:, i]
            pairs = np.ascontiguousarray(matrix).view(np.uint32)  # lane q + 4 g: row g, pair q
            self.registers[target] = pairs.reshape(-1)

    def mma(self, d: list[str], a: list[str], b: list[str], c: list[str]) -> None:
        def matrix(names: list[str], high: int, wide: int) -> Array:
            out = np.zeros((self.threads // 32, high, wide), np.float32)
            for i, name in enumerate(names):
                raw = np.ascontiguousarray(self.registers[name], np.uint32)
                pair = raw.view(ml_dtypes.bfloat16).astype(np.float32).reshape(-1, 8, 4, 2)
                row, column = (i % 2 * 8, i // 2 * 8) if high == 16 else (0, i * 8)
                out[:, row : row + 8, column : column + 8] = pair.reshape(-1, 8, 8)
            return out

        product = matrix(a, 16, 16) @ matrix(b, 8, 16).swapaxes(1, 2)
        for i, (target, before) in enumerate(zip(d, c, strict=True)):
            half = product[:, i // 2 * 8 : i // 2 * 8 + 8, i % 2 :: 2]
            self.registers[target] = self.registers[before] + half.reshape(-1)


def _listed(text: str) -> list[str]:
    return [x.strip() for x in text.strip("{}").split(",")]


def run_cta(text: str, cta: int, threads: int, arrays: list[Array], integers: list[int]) -> None:
    """Run one CTA of a kernel on arrays (in the order of the parameters), which it changes."""
    with np.errstate(all="ignore"):
        _Cta(text, cta, threads, arrays, integers).run()
