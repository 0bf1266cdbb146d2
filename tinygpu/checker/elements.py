"""What cells hold: elements of operands and of sums, and expressions of them.

Each coordinate of an element is a *form*, factors of names that are the same for all cells (of the
grid, of steps), and a number for each cell.  A statement's numbers are arrays by *modes*: its
threads, then each extent of its values; along a mode that does not matter they have the extent 1.

>>> rows = Elements(Value("a"), {"a": ((("J", 64),),)}, {"a": [np.arange(4).reshape(1, 4)]})
>>> print(rows, rows.changed("J", (("s", 1),), 2).at["a"][0])
a[64*J] [[128 129 130 131]]
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from tinygpu.checker.outcome import refuse, uncertified
from tinygpu.numbers import Integers
from tinygpu.term.expression import Apply, Constant, Expression, Value
from tinygpu.term.program import Access, Do

__all__ = [
    "Elements",
    "FilledCells",
    "Form",
    "Places",
    "along",
    "first_along",
    "fragments",
    "joined",
    "line",
    "moves",
    "side_by_side",
    "terms_of",
]  # fmt: skip

Form = tuple[tuple[str, int], ...]
"""Factors of names, sorted; what is constant stands beside it, cell by cell."""
Places = Integers


@dataclass(slots=True)
class Elements:
    """A tree of atoms, with the form of each coordinate of each atom and the numbers beside it."""

    tree: Expression
    forms: dict[str, tuple[Form, ...]]
    at: dict[str, list[Places]]

    def alike(self, other: Elements) -> bool:
        """Say whether both are of one tree and form."""
        return self.tree == other.tree and self.forms == other.forms

    def changed(self, name: str, form: Form, constant: int) -> Elements:
        """Return the same with a form and a constant in place of a name."""
        forms: dict[str, tuple[Form, ...]] = {}
        at: dict[str, list[Places]] = {}
        for atom, every in self.forms.items():
            found = []
            for one, places in zip(every, self.at[atom], strict=True):
                total = defaultdict(int, one)
                factor = total.pop(name, 0)
                for other, n in form:
                    total[other] += factor * n
                kept = tuple(sorted((other, n) for other, n in total.items() if n))
                found.append((kept, places + factor * constant))
            forms[atom] = tuple(kept for kept, _ in found)
            at[atom] = [places for _, places in found]
        return Elements(self.tree, forms, at)

    def names(self) -> set[str]:
        """Return the names in its forms."""
        return {name for every in self.forms.values() for one in every for name, _ in one}

    def __str__(self) -> str:
        atoms = [f"{atom}[{', '.join(map(line, forms))}]" for atom, forms in self.forms.items()]
        return " ".join(atoms) if len(atoms) == 1 else f"{self.tree} of {' '.join(atoms)}"


class FilledCells:
    """What the cells of a ring hold at an index, by thread (of registers) and cell."""

    def __init__(self, piece: Elements, shape: tuple[int, int]) -> None:
        at = {a: [np.zeros(shape, np.int64) for _ in every] for a, every in piece.at.items()}
        self.held, self.filled = Elements(piece.tree, piece.forms, at), np.zeros(shape, bool)

    def put(self, piece: Elements, thread: Places, cell: Places) -> bool:
        """Fill cells; say whether each gets one element, and the one that it has."""
        if not self.agrees(piece, thread, cell):
            return False
        if self.filled[thread, cell].all():
            return True
        self.filled[thread, cell] = True
        still = np.flatnonzero(np.array(np.broadcast_shapes(thread.shape, cell.shape)) == 1)
        for atom, every in piece.at.items():
            for into, places in zip(self.held.at[atom], every, strict=True):
                if moves(places, still):
                    return False
                into[thread, cell] = places[first_along(places, still)]
        return self.agrees(piece, thread, cell)

    def agrees(self, piece: Elements, thread: Places, cell: Places) -> bool:
        """Say whether cells that are filled hold what the piece has."""
        filled = self.filled[thread, cell]
        return self.held.alike(piece) and not any(
            bool((filled & (there[thread, cell] != places)).any())
            for atom, every in piece.at.items()
            for there, places in zip(self.held.at[atom], every, strict=True)
        )

    def get(self, thread: Places, cell: Places) -> Elements | None:
        """Return what some cells hold, by mode; None: not all of them are filled."""
        if not self.filled[thread, cell].all():
            return None
        at = {atom: [x[thread, cell] for x in every] for atom, every in self.held.at.items()}
        return Elements(self.held.tree, self.held.forms, at)


def line(form: Form) -> str:
    """Return a form as text."""
    return " + ".join(name if n == 1 else f"{n}*{name}" for name, n in form) or "0"


def along(mode: int, rank: int, numbers: Places) -> Places:
    """Return numbers along one of so many modes."""
    return numbers.reshape([-1 if i == mode else 1 for i in range(rank)])


def first_along(places: Places, modes: Iterable[int]) -> tuple[slice, ...]:
    """Return where places have the first number of these modes."""
    some = set(modes)
    return tuple(slice(0, 1) if i in some else slice(None) for i in range(places.ndim))


def moves(places: Places, modes: Iterable[int]) -> bool:
    """Say whether places move along any of these modes."""
    return bool((places != places[first_along(places, modes)]).any())


def joined(what: object, tree: Expression, pieces: list[Elements]) -> Elements:
    """Return what a statement makes of several pieces: their atoms together."""
    whole = Elements(tree, {}, {})
    for piece in pieces:
        for atom, forms in piece.forms.items():
            if whole.forms.setdefault(atom, forms) != forms or any(
                (a != b).any() for a, b in zip(whole.at.get(atom, ()), piece.at[atom], strict=False)
            ):
                uncertified(f"{what}: two elements of {atom}")
            whole.at[atom] = piece.at[atom]
    return whole


def side_by_side(what: object, do: Do, access: Access, halves: list[Elements]) -> Elements:
    """Return what two CTAs hold, along value mode 3, along which neither moves."""
    mode, (one, other) = 3, halves
    if len(do.values) <= mode or int(do.values[mode]) != 2 or any(access.value[mode]):
        uncertified(f"{what}: no halves of columns")
    if not one.alike(other):
        refuse(f"provenance: {what}: {one} beside {other}")
    at = {
        atom: [
            np.concatenate(np.broadcast_arrays(a, b), axis=1 + mode)
            for a, b in zip(every, other.at[atom], strict=True)
        ]
        for atom, every in one.at.items()
    }
    return Elements(one.tree, one.forms, at)


def fragments(
    what: object, do: Do, x: Elements, y: Elements, thread: Places, cell: Places
) -> tuple[Elements, Elements, Places, Places, tuple[int, ...]]:
    """Return a warp's product by modes: those of its sums, then those of k, and their extents.

    Lane 4 g + q holds of the sums rows g + 8 half and columns 2 q + pair; of A the same rows and,
    of 16 bits, columns 2 q + pair + 8 deep, of tf32 q + 4 deep; of B column g and, as rows, A's
    columns.  Modes are q, g, warp, pair, half, columns, rows; and q, pair, deep of k.

    Source: PTX ISA 9, "Matrix Fragments for mma.m16n8k16 with floating point type", "..
    mma.m16n8k8".
    """
    types = {a.buffer.dtype for a in do.reads[:2] if isinstance(a, Access)}
    wide = types == {"tf32"}
    if not (wide or types <= {"bf16", "f16"}):
        uncertified(f"{what}: fragments of {' '.join(sorted(types))}")
    if tuple(map(int, do.values[:3])) != (2, 2, 2) or len(do.values) != 5:
        uncertified(f"{what}: values {do.values}")
    threads = thread.shape[0]

    def lanes(places: Places, *, one: tuple[int, ...]) -> Places:
        """Return by q, g, warp, pair, half, deep, columns, rows; ``one``: of extent 1."""
        every = np.broadcast_to(places, (threads, *places.shape[1:]))
        found = every.reshape(-1, 8, 4, *places.shape[1:]).transpose(2, 1, 0, *range(3, 8))
        if any(found.shape[i] != 1 for i in one):
            uncertified(f"{what}: an operand moves along a mode of another")
        return found

    def left(places: Places) -> Places:
        q_last = lanes(places, one=(3, 6) if wide else (6,)).transpose(1, 2, 4, 7, 0, 3, 5, 6)
        return q_last[None, :, :, None, :, None, :, :, :, :, 0]

    def right(places: Places) -> Places:
        q_last = lanes(places, one=(3, 4, 7) if wide else (4, 7)).transpose(1, 2, 6, 0, 3, 5, 4, 7)
        split = q_last[..., 0, 0].reshape(4, 2, *q_last.shape[1:6]).swapaxes(1, 2)
        return split[:, None, :, :, None, :, None]

    def sums(places: Places) -> Places:
        q, g, w, pair, half, _, columns, rows = (found := lanes(places, one=(5,))).shape
        return found.reshape(q, g, w, pair, half, columns, rows, 1, 1, 1)

    a = Elements(x.tree, x.forms, {n: [*map(left, every)] for n, every in x.at.items()})
    b = Elements(y.tree, y.forms, {n: [*map(right, every)] for n, every in y.at.items()})
    columns, rows = map(int, do.values[3:])
    extents = (4, 8, threads // 32, 2, 2, columns, rows, 4, 1 if wide else 2, 2)
    return a, b, sums(thread), sums(cell), extents


def terms_of(tree: Expression, parts: dict[str, list[str]]) -> str:
    """Return an expression with sums and products in one order, an fma as both.

    ``parts``: of each sum what its parts are called; all of them, each once, are the sum.

    >>> a, b = Value("a"), Value("b")
    >>> terms_of(Apply("fma", (b, a, Constant(1.0))), {}) == terms_of(1.0 + a * b, {})
    True
    """
    match tree:
        case Apply("add" | "fma" | "mul" | "max" | "min" as how, _):
            how = "add" if how == "fma" else how
            terms = sorted(one for one in _flat(how, tree, parts) if (how, one) != ("add", "0.0"))
            for name, tags in parts.items() if how == "add" else ():
                if [one for one in terms if one in tags] == sorted(tags):
                    terms = sorted([name, *(one for one in terms if one not in tags)])
            return f"{how}({', '.join(terms)})" if len(terms) > 1 else "".join(terms)
        case Apply(how, arguments):
            return f"{how}({', '.join(terms_of(one, parts) for one in arguments)})"
        case Constant(number):
            return str(float(number))
        case Value(name):
            return name
    return uncertified(f"{tree} in an epilogue")


def _flat(how: str, tree: Expression, parts: dict[str, list[str]]) -> Iterator[str]:
    """Yield the terms of a sum of sums, of a product of products, and so on."""
    match tree:
        case Apply(operator, terms) if operator == how:
            for term in terms:
                yield from _flat(how, term, parts)
        case Apply("fma", (a, b, c)) if how == "add":
            yield from _flat(how, Apply("add", (Apply("mul", (a, b)), c)), parts)
        case _:
            yield terms_of(tree, parts)
