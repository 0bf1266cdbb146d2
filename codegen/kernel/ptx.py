"""PTX text: lines, typed virtual registers, and values that are known here or only there.

A *scalar* of the emitted code is a Python int where it is known while emitting, else the name of a
register.  ``add``, ``multiply`` and the rest fold what is known, so the emitter never asks which.
Values are remembered per scope: what was computed before a branch or a loop is reused inside it,
never the other way round.

Source: PTX ISA 9.0, sections 9.7.1 (integer arithmetic) and 11 (directives).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

from tinygpu.errors import ProgramError

__all__ = ["Scalar", "Text"]

Scalar = int | str

_PREFIX = {"pred": "p", "b16": "h", "u32": "r", "b32": "w", "u64": "rd", "f32": "f", "f64": "d"}
_SHIFTS = {1 << i: i for i in range(31)}


class Text:
    """Lines of a kernel's body, and its registers."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.beside: list[str] = []
        self.counts: dict[str, int] = {}
        self.labels = 0
        self.scopes: list[dict[Hashable, Scalar]] = [{}]

    def register(self, kind: str) -> str:
        """Return a new register of a PTX type."""
        n = self.counts.get(kind, 0)
        self.counts[kind] = n + 1
        return f"%{_PREFIX[kind]}{n}"

    def label(self, stem: str) -> str:
        """Return a new label."""
        self.labels += 1
        return f"${stem}_{self.labels}"

    def emit(self, line: str) -> None:
        """Add an instruction."""
        self.lines.append(f"\t{line};")

    def note(self, text: str) -> None:
        """Add a comment."""
        self.lines.append(f"\t// {text}")

    def mark(self, label: str) -> None:
        """Place a label."""
        self.lines.append(f"{label}:")

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Put what is emitted inside behind the kernel's end."""
        here, self.lines = self.lines, []
        yield
        self.beside += self.lines
        self.lines = here

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Forget, at the end, what was computed inside."""
        self.scopes.append({})
        yield
        self.scopes.pop()

    def once(self, key: Hashable, make: Callable[[], Scalar]) -> Scalar:
        """Return the value under ``key``, computed here if no enclosing scope has it."""
        for scope in reversed(self.scopes):
            if key in scope:
                return scope[key]
        self.scopes[-1][key] = found = make()
        return found

    def remember(self, key: Hashable, value: Scalar) -> None:
        """Set the value under ``key`` in this scope."""
        self.scopes[-1][key] = value

    def known(self, key: Hashable) -> Scalar | None:
        """Return the value under ``key`` if an enclosing scope has it."""
        return next((s[key] for s in reversed(self.scopes) if key in s), None)

    def _make(self, kind: str, line: str) -> str:
        target = self.register(kind)
        self.emit(line.format(target))
        return target

    def add(self, a: Scalar, b: Scalar) -> Scalar:
        """32-bit sum."""
        if isinstance(a, int):
            a, b = b, a
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        return a if b == 0 else self._make("u32", f"add.s32 {{}}, {a}, {b}")

    def subtract(self, a: Scalar, b: Scalar) -> Scalar:
        """32-bit difference."""
        if isinstance(b, int):
            return self.add(a, -b)
        return self._make("u32", f"sub.s32 {{}}, {a}, {b}")

    def multiply(self, a: Scalar, b: Scalar) -> Scalar:
        """32-bit product."""
        if isinstance(a, int):
            a, b = b, a
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if isinstance(b, int) and b in (0, 1):
            return a if b else 0
        if isinstance(b, int) and b in _SHIFTS:
            return self._make("u32", f"shl.b32 {{}}, {a}, {_SHIFTS[b]}")
        return self._make("u32", f"mul.lo.s32 {{}}, {a}, {b}")

    def multiply_add(self, a: Scalar, b: Scalar, c: Scalar) -> Scalar:
        """32-bit ``a * b + c``."""
        if c == 0 or (isinstance(a, int) and a in (0, 1)) or (isinstance(b, int) and b in (0, 1)):
            return self.add(self.multiply(a, b), c)
        if isinstance(a, int) and isinstance(b, int):
            return self.add(a * b, c)
        if isinstance(a, int):
            a, b = b, a
        return self._make("u32", f"mad.lo.s32 {{}}, {a}, {b}, {c}")

    def divide(self, a: Scalar, b: Scalar) -> Scalar:
        """32-bit unsigned quotient."""
        if isinstance(a, int) and isinstance(b, int):
            return a // b
        if isinstance(b, int) and b in _SHIFTS:
            return a if b == 1 else self._make("u32", f"shr.u32 {{}}, {a}, {_SHIFTS[b]}")
        return self._make("u32", f"div.u32 {{}}, {a}, {b}")

    def modulo(self, a: Scalar, b: Scalar) -> Scalar:
        """32-bit unsigned remainder."""
        if isinstance(a, int) and isinstance(b, int):
            return a % b
        if isinstance(b, int) and b in _SHIFTS:
            return 0 if b == 1 else self._make("u32", f"and.b32 {{}}, {a}, {b - 1}")
        return self._make("u32", f"rem.u32 {{}}, {a}, {b}")

    def minimum(self, a: Scalar, b: Scalar) -> Scalar:
        """32-bit unsigned minimum."""
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        if isinstance(a, int):
            a, b = b, a
        return self._make("u32", f"min.u32 {{}}, {a}, {b}")

    def signed(self, operator: str, a: Scalar, b: Scalar) -> Scalar:
        """32-bit signed sum, difference, product, minimum, maximum, or quotient rounded up.

        A quotient is by a positive number that is known.
        """
        match operator:
            case "add":
                return self.add(a, b)
            case "sub":
                return self.subtract(a, b)
            case "mul":
                return self.multiply(a, b)
            case "min" | "max" if isinstance(a, int) and isinstance(b, int):
                return min(a, b) if operator == "min" else max(a, b)
            case "min" | "max":
                a, b = (b, a) if isinstance(a, int) else (a, b)
                return self._make("u32", f"{operator}.s32 {{}}, {a}, {b}")
            case "ceildiv" if isinstance(b, int) and b > 0:
                return self._ceildiv(a, b)
        raise ProgramError(
            f"{operator} of {a} and {b}: a tile value has code of add, sub, mul, min, max, and of "
            "ceildiv by a positive number; write it so"
        )

    def _ceildiv(self, a: Scalar, b: int) -> Scalar:
        """Round ``a / b`` up, which is (a + b - 1) / b rounded down."""
        if isinstance(a, int):
            return -(-a // b)
        up = self.add(a, b - 1)
        if b in _SHIFTS:
            return up if b == 1 else self._make("u32", f"shr.s32 {{}}, {up}, {_SHIFTS[b]}")
        quotient = self._make("u32", f"div.s32 {{}}, {up}, {b}")  # towards 0
        rest = self.subtract(up, self.multiply(quotient, b))
        return self.add(quotient, self._make("u32", f"shr.s32 {{}}, {rest}, 31"))

    def exclusive_or(self, a: Scalar, b: Scalar) -> Scalar:
        """32-bit xor."""
        if isinstance(a, int) and isinstance(b, int):
            return a ^ b
        return a if b == 0 else self._make("u32", f"xor.b32 {{}}, {a}, {b}")

    def wide_product(self, a: Scalar, b: Scalar) -> Scalar:
        """64-bit product of 32-bit signed numbers."""
        if isinstance(a, int):
            a, b = b, a
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if b == 0:
            return 0
        return self._make("u64", f"mul.wide.s32 {{}}, {a}, {b}")

    def wide_multiply_add(self, a: Scalar, b: Scalar, c: Scalar) -> Scalar:
        """64-bit ``a * b + c``, with 32-bit signed factors."""
        if isinstance(a, int):
            a, b = b, a
        if isinstance(a, int) or b == 0 or c == 0:
            return self.wide_add(self.wide_product(a, b), c)
        return self._make("u64", f"mad.wide.s32 {{}}, {a}, {b}, {c}")

    def wide_add(self, a: Scalar, b: Scalar) -> Scalar:
        """64-bit sum."""
        if isinstance(a, int):
            a, b = b, a
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        return a if b == 0 else self._make("u64", f"add.s64 {{}}, {a}, {b}")

    def less(self, a: Scalar, b: Scalar, also: str | None = None) -> str | bool:
        """Predicate ``a < b`` (signed), and ``also``."""
        if isinstance(a, int) and isinstance(b, int):
            return (also or True) if a < b else False
        joined = f".and.s32 {{}}, {a}, {b}, {also}" if also else f".s32 {{}}, {a}, {b}"
        if isinstance(a, int):
            swapped = f"{b}, {a}, {also}" if also else f"{b}, {a}"
            joined = f"{'.and' if also else ''}.s32 {{}}, {swapped}"
            return self._make("pred", f"setp.gt{joined}")
        return self._make("pred", f"setp.lt{joined}")

    def declarations(self) -> list[str]:
        """Return the .reg directives for all registers that were made."""
        return [f"\t.reg .{kind} %{_PREFIX[kind]}<{n}>;" for kind, n in self.counts.items()]
