"""What a term computes: each sum has its terms, each once, and each element is stored once.

**Theorem.**  *Let ``check`` accept a term's order and ``computed`` its meaning.  Then for all sizes
at which no unguarded access leaves its array, each element of each output is stored once, and what
is stored is the operation's epilogue of its sums: each reduction adds up the product of its two
factors at every coordinate that it is over, each once.*  Numbers are exact here: how they are
rounded is a matter of types and of the order of sums.  A reduced axis is gone through in whole
steps; what lies outside of the arrays is 0, or not stored.

**Each once.**  Which coordinates a product adds is counted for all numbers of steps from the least
up to ``4 B + 4``, B the largest number in a guard or a shift of blocks.  Guards ask about the
distance to the start or to the end of the loop.  So from there on one step more is one step more in
the middle, where nothing tells steps apart.

What is not of this form is *not certified*: ``computes`` tests it by execution.

>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.term.operation import matmul
>>> print(computed(Simt().program(matmul(), Chosen(LADDER["shared"]))).line)
c: each element once, of acc over k, each term once
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from tinygpu.checker.elements import Form, line
from tinygpu.checker.outcome import RefusedError, Ruling, UncertifiedError, refuse, uncertified
from tinygpu.checker.protocol import Action, Part, Protocol
from tinygpu.checker.provenance import STEP, STEPS, Key, Product, Provenance
from tinygpu.term.expression import Apply, Constant, Expression, Value
from tinygpu.term.operation import Operation
from tinygpu.term.program import Do, Program

__all__ = ["computed"]

_Terms = list[tuple[bytes, int]]
"""What products have added to sums: numbers, and how much further each of them is."""


def computed(program: Program) -> Ruling:
    """Check that a term, whose order was accepted, computes its operation."""
    try:
        _require_sums(program.operation)
        return Ruling("accepted", _Totals(Provenance(Protocol(program))).check())
    except RefusedError as error:
        return Ruling("refused", str(error))
    except UncertifiedError as error:
        return Ruling("not certified", str(error))


def _require_sums(operation: Operation) -> None:
    """Say "not certified" of an operation that is something else than sums of products."""
    inputs = {operand.name for operand in operation.inputs}
    if operation.pages or operation.lengths:
        uncertified(f"{operation.name} has pages or lengths")
    if not operation.reductions or operation.groups:
        uncertified(f"{operation.name} has {'groups of rows' if operation.groups else 'no sums'}")
    for r in operation.reductions:
        products = len(r.factors) == 2 and {*map(str, r.factors)} <= inputs
        if r.operator != "add" or len(r.over) != 1 or not products:
            uncertified(f"{operation.name}: {r.name} is no sum of products of two inputs")


class _Totals:
    """A term's products by the sums that they add to, and its stores."""

    def __init__(self, walked: Provenance) -> None:
        walked.walk()
        self.w, self.p, self.op = walked, walked.p, walked.op
        self.adds: dict[int, list[Product]] = defaultdict(list)
        self.of: dict[Key, list[Product]] = defaultdict(list)
        for (number, _), one in walked.products.items():
            self.adds[number].append(one)
            self.of[one.ring].append(one)
        self.late = {ring for n, ring in walked.products if self.p.actions[n].part == "tail"}
        steps = {dict(one.form).get(STEP, 0) for one in walked.products.values()} - {0}
        if not self.p.param or len(steps) != 1 or min(steps) < 0:
            uncertified(f"steps of {sorted(steps)} along the reduced axis")
        (self.step,) = steps

    def check(self) -> str:
        """Return what is proved."""
        self.apart()
        for steps in self.numbers():
            self.counted(steps)
        self.cover()
        self.dense()
        self.exit_outside()
        sums = ", ".join(f"{r.name} over {' '.join(r.over)}" for r in self.op.reductions)
        return f"{', '.join(self.w.outputs)}: each element once, of {sums}, each term once"

    def apart(self) -> None:
        """Ask that products of one role add to the same sums, or to others."""
        for every in self.of.values():
            if len({one.team for one in every}) > 1:
                uncertified(f"{' and '.join({one.team for one in every})} add to the same sums")
            sets = {one.cells for one in every}
            if any(a & b for a in sets for b in sets if a != b):
                uncertified("products add to a part of others' sums")

    def numbers(self) -> range:
        """Return which numbers of steps stand for all."""
        forms = [g for a in self.p.actions for g in (*a.guards, *([a.fresh] if a.fresh else ()))]
        for _, done, left in forms:
            if done and left and done != left:
                uncertified(f"a guard by {done} of the steps done and {left} of those left")
        numbers = [form[0] for form in forms]
        for one in self.w.products.values():
            numbers += [int(n) // self.step + 1 for n in (one.added.max(), -one.added.min())]
        for action in self.p.actions:
            numbers += [self.w.key(action, r)[1] for r in action.references if r.ring.pace.step]
        bound = max(map(abs, (*numbers, 1)))
        return range(self.p.least, max(self.p.least, 4 * bound + 4) + 1)

    def order(self, steps: int) -> Iterator[tuple[int, Action]]:
        """Yield what happens to a tile of so many steps, and after how many of them."""
        turns: dict[Part, Sequence[int]] = {"head": (0,), "loop": range(steps), "tail": (steps,)}
        for part, every in turns.items():
            for at in every:
                for number in self.w.lead:
                    for action in self.p.todo[part][number]:
                        if all(c + d * at + e * (steps - at) < 0 for c, d, e in action.guards):
                            yield at, action

    def counted(self, steps: int) -> None:
        """Ask that all sums are whole where they are read, with so many steps."""
        begun: dict[tuple[Key, int], _Terms] = {}
        right: set[tuple[tuple[bytes, int], ...]] = set()
        stored = dict.fromkeys(self.w.stores, 0)
        for at, action in self.order(steps):
            self.within(action, at, steps)
            if action.number in stored:
                stored[action.number] += 1
            if action.number in self.w.begins:
                ring, cells = self.w.begins[action.number]
                for cleared in {one.cells for one in self.of[ring] if one.cells & cells}:
                    if cleared & ~cells:
                        uncertified(f"{action}: it clears a part of some sums")
                    begun[ring, cleared] = []
            c, d, e = action.fresh or (1, 0, 0)
            for one in self.adds.get(action.number, ()):
                if c + d * at + e * (steps - at) == 0:
                    begun[one.ring, one.cells] = []
                if (one.ring, one.cells) not in begun:
                    refuse(f"sums: {action}: it adds to sums that never began, of {steps} steps")
                factors = dict(one.form)
                far = factors.get(STEP, 0) * at + factors.get(STEPS, 0) * steps
                begun[one.ring, one.cells].append((one.added.tobytes(), far))
            for ring, cells in self.w.reads_sums.get(action.number, ()):
                for one in (one for one in self.of[ring] if one.cells & cells):
                    terms = begun.get((ring, one.cells))
                    if terms is None or tuple(terms) not in right:
                        self.whole(action, one, terms, steps)
                        right.add(tuple(terms or ()))
                    self.after(action, one)
        for number, times in stored.items():
            if times != 1:
                refuse(f"store: {self.p.actions[number]}: {times} times, with {steps} steps")

    def whole(self, action: Action, one: Product, terms: _Terms | None, steps: int) -> None:
        """Ask that sums have all terms, each once, where they are read."""
        if terms is None:
            refuse(f"sums: {action}: it reads sums that never began, of {steps} steps")
        wanted = np.arange(self.step * (steps + self.w.first))
        every = [np.frombuffer(added, np.int64) + far for added, far in terms]
        added = np.sort(np.concatenate([wanted[:0], *every]))
        if not np.array_equal(added, wanted):
            odd = set(added.tolist()) ^ set(wanted.tolist())
            what = f"term {min(odd)} is lost, or too much" if odd else "a term is added twice"
            refuse(f"sums: {action}: of {one.reduction} {what}, of {steps} steps")

    def after(self, action: Action, one: Product) -> None:
        """Ask that another role's sums are read behind all of its steps."""
        if one.team != action.actor.team and (action.part != "tail" or one.ring in self.late):
            uncertified(f"{action}: sums of another role, before all its steps are over")

    def within(self, action: Action, at: int, steps: int) -> None:
        """Ask that what an action touches of rings is of blocks of this tile."""
        if not self.p.tiled:
            return
        for one in action.references:
            pace = one.ring.pace
            if pace.step:
                more = (pace.tile or 0) + (pace.turn or 0)
                if not 0 <= pace.step * at + one.offset < pace.step * steps + more:
                    uncertified(f"{action}: {one.ring.name} of another tile, with {steps} steps")

    def cover(self) -> None:
        """Ask that the steps cover the reduced axis, and tiles and stores the outputs."""
        program = self.p.program
        variable, many = self.split()
        split, whole = {variable} - {""}, self.step * many
        for r in self.op.reductions:
            if not self.reaches(Value(self.p.param), r.over[0], whole):
                uncertified(f"{self.p.param} steps of {whole} do not surely cover {r.over[0]}")
        for name, forms in self.w.stored.items():
            output, _ = self.w.outputs[name]
            used = dict[str, int]()
            tile = []
            for axis, form in zip(output.axes, forms, strict=True):
                if len(form) != 1 or form[0][0] in used:
                    uncertified(f"{name}: {axis} at {line(form)}")
                ((variable, extent),) = form
                used[variable] = extent
                tile.append(extent)
                grid = [a.extent for a in program.grid if a.var == variable]
                if not grid or not self.reaches(grid[0], axis, extent):
                    uncertified(f"{name}: tiles of {extent} do not surely cover {axis}")
            for residue in range(self.p.period):
                self.stored_once(name, tile, residue)
            strange = {a.var for a in program.grid} - {*used} - self.w.alone - split
            if strange:
                refuse(f"store: {name}: each {min(strange)} stores the same")
        if missing := {*self.w.outputs} - {*self.w.stored}:
            refuse(f"store: nobody stores {min(missing)}")
        if split and not all(
            isinstance(a.statement, Do) and a.statement.instruction.atomic
            for a in self.p.actions if a.number in self.w.stores
        ):  # fmt: skip
            refuse("store: parts of a sum are stored, and not added")
        if split and any(e != Value(r.name) for _, e in self.w.outputs.values()
                         for r in self.op.reductions):  # fmt: skip
            refuse("store: an epilogue of parts of a sum")

    def split(self) -> tuple[str, int]:
        """Return what counts parts of the reduced axis, one after another, and how many.

        It is a variable of the grid, "" if there is none; CTAs that share sums are by their ranks.
        """
        rests: dict[str, set[Form]] = {
            tag: set() for r in self.op.reductions for tag in self.w.tags(r.name)
        }
        for one in self.w.products.values():
            rest = tuple(p for p in one.form if p[0] not in (STEP, STEPS))
            rests.setdefault(one.reduction, set()).add(rest)
        names = {name for every in rests.values() for rest in every for name, _ in rest}
        if not names and self.w.shared is None:
            return "", 1
        size, _, variable = min(names, default="").partition("*")
        whole = {Value(self.p.param), Constant(self.step)}
        match dict(self.p.program.parameters).get(size):
            case Apply("mul", terms) if set(terms) == whole and len(names) == 1:
                pass
            case _:
                uncertified(f"parts of the reduced axis by {sorted(names)}")
        if self.w.shared is not None and not variable:
            for r in self.op.reductions:
                for rank, tag in enumerate(self.w.tags(r.name)):
                    if rests[tag] != {((size, rank),) if rank else ()}:
                        refuse(f"sums: {tag} has not part {rank} of the reduced axis")
            return "", len(self.w.tags(r.name))
        grid = [axis.extent for axis in self.p.program.grid if axis.var == variable]
        if self.w.shared is None and set().union(*rests.values()) == {((min(names), 1),)}:
            match grid:
                case [Constant(n)]:
                    return variable, int(n)
        return uncertified(f"parts of the reduced axis by {sorted(names)}")

    def dense(self) -> None:
        """Ask that arrays lie row by row, as the operation's; a launch may give other pitches."""
        known = dict(self.p.program.parameters)

        def factors(size: Expression) -> list[str]:
            match size:
                case Value(name) if name in known:
                    return factors(known[name])
                case Apply("mul", terms):
                    return [name for term in terms for name in factors(term)]
                case Constant(1):
                    return []
            return [str(size)]

        for buffer in self.p.program.buffers:
            for d, stride in enumerate(buffer.stride if buffer.level == "gmem" else ()):
                size = Value(stride) if isinstance(stride, str) else Constant(stride)
                if sorted(factors(size)) != sorted(map(str, buffer.shape[d + 1 :])):
                    refuse(f"provenance: {buffer.name}: a stride {stride} along {buffer.shape[d]}")

    def exit_outside(self) -> None:
        """Ask that threads which leave store nothing inside: what they ask is where they store."""
        stores = [a.statement for a in self.p.actions if a.number in self.w.stores]
        for action, leaving in self.w.exits:
            if any(isinstance(g, str) for g in leaving.access.guard) or action.site[-1]:
                uncertified(f"{action}: it asks of a tile value, or in a loop")
            for store in stores:
                if not isinstance(store, Do) or (
                    replace(leaving.access, guard=()), leaving.values, leaving.threads
                ) != (replace(store.write, guard=()), store.values, store.threads):  # fmt: skip
                    uncertified(f"{action}: it asks of other elements than are stored")

    def stored_once(self, name: str, tile: list[int], residue: int) -> None:
        """Ask that stores cover a tile of a residue, each element once."""
        places = [
            x
            for a in self.p.actions if self.p.takes(a.actor, residue)
            for n, x in (self.w.stores.get(a.number, ("", [])),) if n == name
        ]  # fmt: skip
        if not places:
            refuse(f"store: {name}: nobody stores the tiles of residue {residue}")
        flat = np.zeros(sum(x[0].size for x in places), np.int64)
        for d, extent in enumerate(tile):
            coordinate = np.concatenate([x[d] for x in places])
            if coordinate.min() < 0 or coordinate.max() >= extent:
                refuse(f"store: {name}: {coordinate.max()} of a tile of {extent}")
            flat = flat * extent + coordinate
        times = np.bincount(flat, minlength=prod(tile))
        if not (times == 1).all():
            odd = int((times != 1).argmax())
            refuse(f"store: {name}: element {odd} of a tile of {tile} is stored {times[odd]} times")

    def reaches(self, expression: Expression, axis: str, by: int) -> bool:
        """Say whether an expression times ``by`` is at least a size, provably."""
        known = dict(self.p.program.parameters)
        match expression:
            case Value(name) if name in known:
                return self.reaches(known[name], axis, by)
            case Value(name):
                return name == axis and by >= 1
            case Apply("ceildiv", (top, Constant(n))) if n > 0 and by % n == 0:
                return self.reaches(top, axis, by // int(n))
            case Apply("max", terms):
                return any(self.reaches(one, axis, by) for one in terms)
        return False
