"""Where what a term moves comes from: a walk over its statements, by provenance.

Whatever a ring holds at an index, its cells hold elements of operands, of sums, or an expression
of such (``elements.py``).  Writes say what is held, all of one index the same; reads find it, since
order's rule V says that a read of an index finds in its cells what was written there at that index.
Nothing here is about when.  Registers that no step moves may be written anew: they hold what their
part of the body wrote last.

**Blocks.**  An index that moves by P with each step, less the P steps of whole blocks, is a
residue; ``J`` is the block, counted in steps.  What is written ``q`` blocks ahead of step s is
block s + q.  So a prologue, a loop and a rest that fill one ring agree where they name one block.

**Products.**  Along modes that its sums don't move the reduced coordinate counts; the two factors
have it alike, and the other coordinates do not move there.  ``mma.sync`` is rearranged into such
modes, by PTX's fragments.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from math import prod

import numpy as np

from tinygpu.checker.elements import (
    Elements,
    FilledCells,
    Form,
    Places,
    along,
    first_along,
    fragments,
    joined,
    line,
    moves,
    side_by_side,
    terms_of,
)
from tinygpu.checker.outcome import refuse, uncertified
from tinygpu.checker.protocol import PARTS, Action, PacedRing, Protocol, Reference
from tinygpu.numbers import Booleans
from tinygpu.term.expression import Apply, Constant, Expression, Value
from tinygpu.term.operation import Operand, Reduction
from tinygpu.term.program import Access, Affine, Do, Exit, Immediate, Scalar

__all__ = ["STEP", "STEPS", "Key", "Product", "Provenance"]

Key = tuple[int, int]
"""A ring and a residue of its index."""
STEP, STEPS, _BLOCK = "s", "S", "J"
"""The step, the number of steps, and the block of a ring that an index names."""


class _LaterError(Exception):
    """What is read there is not known yet."""


@dataclass(slots=True)
class Product:
    """A product at work: which sums, and which coordinates of the reduced axis it adds.

    ``form``: the coordinates' form, in steps; ``added``: the numbers beside it.
    """

    reduction: str
    team: str
    ring: Key
    cells: int
    form: Form
    added: Places


class Provenance:
    """A term's rings and what they hold; its products, its stores, and where sums are read."""

    def __init__(self, protocol: Protocol) -> None:
        self.p, self.op = protocol, protocol.program.operation
        self.operands = {o.name: o for o in self.op.inputs}
        self.outputs = {o.name: (o, epilogue) for o, epilogue in self.op.results}
        self.reduced = {axis for r in self.op.reductions for axis in r.over}
        self.known: dict[Key, FilledCells] = {}
        self.local: dict[Key, list[FilledCells]] = {}
        self.open: set[Key] = set()
        self.products: dict[tuple[int, Key], Product] = {}
        self.begins: dict[int, tuple[Key, int]] = {}
        self.reads_sums: dict[int, list[tuple[Key, int]]] = defaultdict(list)
        self.stores: dict[int, tuple[str, list[Places]]] = {}
        self.stored: dict[str, tuple[Form, ...]] = {}
        self.first = protocol.first or 0
        self.where: dict[Hashable, tuple[Places, Places]] = {}
        axes = [axis for axis, _ in protocol.program.cluster]
        homes = {b.home for b in protocol.program.buffers} & {*axes}
        self.shared = axes.index(min(homes)) if homes else None
        self.parts = {r.name: self.tags(r.name) for r in self.op.reductions} if homes else {}
        self.exits: list[tuple[Action, Exit]] = []
        self.alone = {axis.var for axis in protocol.program.grid if axis.extent == Constant(1)}
        self.sums = {
            r.ring.number
            for a in protocol.actions
            if is_product(a)
            for r in a.references
            if r.write
        }
        lead = {numbers[0] for numbers in protocol.teams.values()}
        self.lead = sorted(lead)
        others = {(a.actor.team, a.part, a.site) for a in protocol.actions
                  if a.actor.number not in lead}  # fmt: skip
        self.elected = {
            a.number for a in protocol.actions
            if len(protocol.teams[a.actor.team]) > 1
            and (a.actor.team, a.part, a.site) not in others
        }  # fmt: skip

    def walk(self) -> None:
        """Find what all rings hold, what is added to which sums, and what is stored."""
        multiply = {a.actor.number for a in self.p.actions if is_product(a)}
        left = {n: len(self.p.actions) for n in sorted(self.lead, key=multiply.__contains__)}
        while left:  # once more for who reads what others write later
            before, first = sum(left.values()), ""
            for number in left:
                left[number], waiting = self.walked(number)
                first = first or waiting
            left = {n: many for n, many in left.items() if many}
            if left and sum(left.values()) >= before:
                uncertified(first)

    def walked(self, number: int) -> tuple[int, str]:
        """Note what an agent writes, adds and stores; return how many actions wait, the first."""
        waiting, first = 0, ""
        for part in PARTS:
            self.local, self.open = {}, set()
            for action in self.p.todo[part][number]:
                try:
                    self.act(action)
                except _LaterError as error:
                    waiting, first = waiting + 1, first or f"{action}: {error}"
                    self.open |= {self.key(action, r)[0] for r in action.references if r.write}
        return waiting, first

    # Where an access is.

    def env(self, action: Action) -> dict[str, int]:
        """Return the numbers of ranks, copies and constant loops at an action."""
        return {**action.actor.env, **dict(action.site[-1])}

    def form(self, action: Action, affine: Affine) -> tuple[Form, int]:
        """Return an origin's form and constant; a loop's variable is its start and the step."""
        env, constant, found = self.env(action), int(affine.constant), defaultdict[str, int](int)
        steps_by = self.p.steps_by(action.actor) if action.part == "loop" else ""
        for name, factor in affine.terms:
            if isinstance(factor, str):
                if name in env:
                    found[factor] += env[name]
                elif name not in self.alone:
                    found[f"{factor}*{name}"] += 1
            elif name in env:
                constant += factor * env[name]
            elif name == steps_by:
                found[STEP] += factor
                constant += factor * self.first
            elif name == self.p.param:
                found[STEPS] += factor
                constant += factor * self.first
            elif name not in self.alone:
                found[name] += factor
        return tuple(sorted((name, n) for name, n in found.items() if n)), constant

    def threads(self, action: Action, do: Do) -> Places:
        """Return the numbers of the threads that execute a statement, 0 of what one issues."""
        whole = int(action.actor.role.threads)
        assert action.entry is not None
        if action.entry.issuer == "one":
            if do.threads:
                uncertified(f"{action}: threads of what one thread issues")
            return np.zeros(1, np.int64)
        if action.number in self.elected:
            uncertified(f"{action}: by one thread of many")
        if do.threads and prod(map(int, do.threads)) != whole:
            uncertified(f"{action}: {prod(map(int, do.threads))} threads of {whole}")
        numbers = np.arange(whole)
        below, extent, residue = map(int, do.lanes or (1, 1, 0))
        found: Places = numbers[numbers // below % extent == residue]
        return found

    def places(self, action: Action, do: Do, access: Access) -> tuple[list[Places], list[Form]]:
        """Return each coordinate of an access, by threads and each mode of values, and its form.

        Modes along which a coordinate does not move have the extent 1.
        """
        numbers, rank = self.threads(action, do), 1 + len(do.values)
        origin = access.origin or (Affine(),) * len(access.buffer.shape)
        found, forms = [], []
        for d, start in enumerate(origin):
            form, constant = self.form(action, start)
            total, below = np.full((1,) * rank, constant, np.int64), 1
            for extent, step in zip(do.threads, access.thread, strict=bool(access.thread)):
                if step[d]:
                    total = total + along(0, rank, numbers // below % int(extent) * int(step[d]))
                below *= int(extent)
            for i, (extent, step) in enumerate(
                zip(do.values, access.value, strict=bool(access.value))
            ):
                if step[d]:
                    total = total + along(1 + i, rank, np.arange(int(extent)) * int(step[d]))
            found.append(total)
            forms.append(form)
        return found, forms

    def cells(self, action: Action, do: Do, access: Access) -> tuple[Places, Places]:
        """Return the thread and the cell of an access on chip, by mode."""
        env = self.env(action)
        if any(name not in env for origin in access.origin for name, _ in origin.terms):
            uncertified(f"{action}: a place in a stage depends on more than constants")
        key = (id(do), id(access), *(o.evaluate(env) for o in access.origin))
        if key not in self.where:
            self.where[key] = self.numbered(action, do, access)
        return self.where[key]

    def numbered(self, action: Action, do: Do, access: Access) -> tuple[Places, Places]:
        """Return the same, computed."""
        at, _ = self.places(action, do, access)
        cell = np.zeros((1,) * (1 + len(do.values)), np.int64)
        for coordinate, extent in zip(at, access.buffer.shape, strict=True):
            cell = cell * int(extent) + coordinate
        private = access.buffer.level == "registers"
        numbers = self.threads(action, do) if private else np.zeros(1, np.int64)
        return along(0, cell.ndim, numbers), cell

    def is_local(self, ring: PacedRing) -> bool:
        """Say whether registers may be written anew, within a part."""
        return ring.buffer.level == "registers" and not ring.pace.step

    def key(self, action: Action, one: Reference) -> tuple[Key, int]:
        """Return a ring and its residue, and by how many blocks an access is ahead."""
        pace = one.ring.pace
        if pace.step:
            ahead, residue = divmod(one.offset, pace.step)
            return (one.ring.number, residue), ahead
        tiles = (pace.tile or 0) + (pace.turn or 0)
        private = one.ring.buffer.level == "registers"
        if (tiles or (self.p.tiled and not private)) and not 0 <= one.offset < tiles:
            uncertified(f"{action}: {one.ring.name} of another tile")
        return (one.ring.number, one.offset), 0

    # What an action does.

    def act(self, action: Action) -> None:
        """Note what a statement writes, and what its products add."""
        do = action.statement
        if isinstance(do, Exit):
            self.exits.append((action, do))
        if not isinstance(do, Do):
            return
        if action.part in ("start", "end"):
            uncertified(f"{action}: outside of the tiles")
        if do.where is not None or int(do.across) or do.instruction.folds:
            uncertified(f"{action}: of some values, or of other lanes")
        if do.instruction.meaning is not None or do.instruction.lower is not None:
            uncertified(f"{action}: the user's own")
        assert action.entry is not None
        if action.entry.makes != "moved" and do.variant not in do.instruction.variants:
            uncertified(f"{action}: {do.variant} is no operator of {do.instruction.name}")
        whole = self.threads(action, do)
        ctas = 2 if do.multicast and is_product(action) else 1
        references = list(action.references)
        operands: list[tuple[Access | Immediate | Scalar, list[Reference]]] = []
        for source in do.reads:
            own: list[Reference] = []
            if isinstance(source, Access) and source.buffer.level != "gmem":
                own, references = references[:ctas], references[ctas:]
                if {source.buffer.name} != {r.ring.buffer.name for r in own} or len(own) < ctas:
                    uncertified(f"{action}: {source.buffer.name} is read by no thread")
            operands.append((source, own))
        writes = references
        factors = [(x, own) for x, own in operands if own and isinstance(x, Access)]
        product = is_product(action) and len(factors) == len(operands)
        if product and self.multiplied(action, do, factors, writes):
            return
        pieces = [self.read(action, do, source, own) for source, own in operands]
        tree = self.tree(action, do, [piece.tree for piece in pieces])
        piece = joined(action, tree, pieces)
        if do.write.buffer.level == "gmem":
            self.store(action, do, piece)
            return
        if not writes:
            uncertified(f"{action}: it writes nothing")
        for one in writes:
            if one.ring.number not in self.sums or action.part == "tail":
                self.write(action, do, one, piece)
            elif tree == Constant(0.0) and len(whole) == int(action.actor.role.threads):
                self.begins[action.number] = (self.key(action, one)[0], one.cells)
            else:
                uncertified(f"{action}: sums that begin at {tree}")

    def tree(self, action: Action, do: Do, given: list[Expression]) -> Expression:
        """Return what a statement makes of what it reads."""
        assert action.entry is not None
        operators = do.instruction.variants
        if action.entry.makes == "moved" and len(given) == 1 and not operators:
            return given[0]
        if action.entry.makes == "applied":
            return Apply(do.variant, tuple(given))
        return uncertified(f"{action}: what {do.instruction.name} makes")

    def read(
        self, action: Action, do: Do, source: Access | Immediate | Scalar, own: list[Reference]
    ) -> Elements:
        """Return what a statement reads, by mode."""
        match source:
            case Immediate(number):
                return Elements(Constant(float(number)), {}, {})
            case Scalar(name, size):
                if size or name not in self.op.scalars:
                    uncertified(f"{action}: {name} is no scalar")
                return Elements(Value(name), {}, {})
        if not own:
            return self.loaded(action, do, source)
        (one,) = own
        key, ahead = self.key(action, one)
        thread, cell = self.cells(action, do, source)
        every = self.local.get(key, [])
        if not every and key in self.known:
            every = [self.known[key]]
        if key in self.open and self.is_local(one.ring):
            raise _LaterError(f"what {one.ring.name} holds is not known yet")
        held = next(filter(None, (cells.get(thread, cell) for cells in every)), None)
        if held is None:
            raise _LaterError(f"{one.ring.name} is not written, or of several trees")
        if one.ring.number in self.sums and key not in self.local:
            self.reads_sums[action.number].append((key, one.cells))
        named: dict[str, Form] = {"loop": ((STEP, 1),), "tail": ((STEPS, 1),)}
        return held.changed(_BLOCK, named.get(action.part, ()), ahead)

    def loaded(self, action: Action, do: Do, source: Access) -> Elements:
        """Return elements of an operand; outside of its array there are zeros."""
        name = source.buffer.name
        operand = self.operands.get(name)
        buffer = source.buffer
        if operand is None or (buffer.shape, buffer.dtype) != (operand.axes, operand.dtype):
            uncertified(f"{action}: {name} is no operand, or of other axes")
        if any(isinstance(g, str) for g in source.guard) or source.outside != 0.0:
            uncertified(f"{action}: edges of {name}")
        if source.trimmed:
            lines = source.value[1]
            if any(lines[d] and a in self.reduced for d, a in enumerate(operand.axes)):
                refuse(f"outside: {action}: lines of a reduced axis that are not loaded")
        at, forms = self.places(action, do, source)
        return Elements(Value(name), {name: tuple(forms)}, {name: at})

    def write(self, action: Action, do: Do, one: Reference, piece: Elements) -> None:
        """Note what a ring holds."""
        key, ahead = self.key(action, one)
        ring = one.ring
        if ring.pace.step:
            match action.part:
                case "loop":
                    piece = piece.changed(STEP, ((_BLOCK, 1),), -ahead)
                case "tail":
                    uncertified(f"{action}: it fills a ring of steps behind them")
                case _:
                    self.prologue(action, do, key, ahead, piece)
                    return
        elif not self.is_local(ring) and piece.names() & {STEP, STEPS}:
            uncertified(f"{action}: {ring.name} holds something else each step")
        if not self.is_local(ring):
            self.hold(action, one, key, piece)
            return
        if action.guards:
            uncertified(f"{action}: it is not always written")
        thread, cell = self.cells(action, do, do.write)
        every = self.local.setdefault(key, [])
        for cells in every:
            cells.filled[thread, cell] = False
        alike = next((cells for cells in every if cells.held.alike(piece)), None)
        if alike is None:
            alike = FilledCells(piece, (int(action.actor.role.threads), ring.cells))
            every.append(alike)
        if not alike.put(piece, thread, cell):
            uncertified(f"{action}: one register gets several elements")

    def hold(self, action: Action, one: Reference, key: Key, piece: Elements, *at: Places) -> None:
        """Note what a ring holds at an index; all that is written there is the same."""
        do, ring = action.statement, one.ring
        assert isinstance(do, Do)
        private = ring.buffer.level == "registers"
        if key not in self.known:
            shape = (int(action.actor.role.threads) if private else 1, ring.cells)
            self.known[key] = FilledCells(piece, shape)
        thread, cell = at or self.cells(action, do, do.write)
        if not self.known[key].put(piece, thread, cell):
            held = self.known[key].held
            uncertified(f"{action}: {ring.name} holds {held} at this index, not {piece} alone")

    def prologue(self, action: Action, do: Do, key: Key, ahead: int, piece: Elements) -> None:
        """Ask that what is written before the loop is what the loop's writes say of its block."""
        if key not in self.known:
            raise _LaterError("no step writes this")
        held = self.known[key].get(*self.cells(action, do, do.write))
        if held is None:
            raise _LaterError("no step writes all of this")
        held = held.changed(_BLOCK, (), ahead)
        if not held.alike(piece) or any(
            (a != b).any() for n in held.at for a, b in zip(held.at[n], piece.at[n], strict=True)
        ):
            uncertified(f"{action}: block {ahead} is {held}, and not {piece}")

    # Products.

    def multiplied(
        self, action: Action, do: Do, reads: list[tuple[Access, list[Reference]]],
        writes: list[Reference],
    ) -> bool:  # fmt: skip
        """Note what a product adds in each CTA that takes part; say whether it is one.

        Of a pair each CTA multiplies its own first factor by the second ones of both: half h of the
        columns (value mode 3) is CTA h's.
        """
        assert action.entry is not None
        if do.lanes is not None:
            uncertified(f"{action}: a product by some lanes")
        if do.variant == "add":  # of a product that stands in a register
            terms = [self.read(action, do, *pair) for pair in reads if pair[0] != do.write]
            return len(terms) == 1 == len(writes) and self.multiply(
                action, do, terms[0], terms[0], writes[0]
            )
        together = action.entry.issuer in ("one", "warpgroup")
        if together and any(
            r.ring.buffer.level == "registers" for _, each in reads[:2] for r in each
        ):
            uncertified(f"{action}: a factor in registers")
        (first, one), (second, other), _ = reads
        halves = [self.read(action, do, second, [r]) for r in other]
        y = halves[0] if len(halves) == 1 else side_by_side(action, do, second, halves)
        done = [
            self.multiply(action, do, self.read(action, do, first, [r]), y, to)
            for r, to in zip(one, writes, strict=True)
        ]
        return all(done)

    def multiply(self, action: Action, do: Do, x: Elements, y: Elements, to: Reference) -> bool:
        """Note what a product adds to sums; say whether it is a product of a reduction."""
        assert action.entry is not None
        key = self.key(action, to)[0]
        found = self.reduction(x, y)
        if found is None:
            if action.entry.adds:
                uncertified(f"{action}: no product of a reduction: {x.tree} by {y.tree}")
            return False
        if key in self.local:
            uncertified(f"{action}: it adds to what is no sum any more")
        reduction, left, right = found
        thread, cell = self.cells(action, do, do.write)
        extents = (len(self.threads(action, do)), *map(int, do.values))
        if action.entry.issuer == "warp":
            x, y, thread, cell, extents = fragments(action, do, x, y, thread, cell)
        moved = np.array(np.broadcast_shapes(thread.shape, cell.shape)) > 1
        (axis,) = reduction.over
        form, added = self.contracted(action, axis, (x, left), (y, right), moved, extents)
        forms: dict[str, Form] = {}
        at: dict[str, Places] = {}
        for held, operand in ((x, left), (y, right)):
            name = operand.name
            for a, one, places in zip(operand.axes, held.forms[name], held.at[name], strict=True):
                if a == axis:
                    continue
                if {STEP, STEPS} & {n for n, _ in one}:
                    uncertified(f"{action}: {a} moves with the steps")
                if a in forms and (forms[a] != one or (at[a] != places).any()):
                    refuse(f"provenance: {action}: {a} of {left.name} and of {right.name} differ")
                forms[a], at[a] = one, places
        axes, name = self.op.output.axes, reduction.name
        if self.shared is not None:
            name = f"{name}@{to.ring.cta[self.shared]}"
        if {*forms} != {*axes}:
            uncertified(f"{action}: sums of {' '.join(forms)}")
        piece = Elements(
            Value(name), {name: tuple(forms[a] for a in axes)}, {name: [at[a] for a in axes]}
        )
        self.hold(action, to, key, piece, thread, cell)
        self.products[action.number, key] = Product(
            name, action.actor.team, key, to.cells, form, added
        )
        return True

    def reduction(self, x: Elements, y: Elements) -> tuple[Reduction, Operand, Operand] | None:
        """Return the reduction whose factors these are, and their operands."""
        for r in self.op.reductions:
            if r.operator == "add" and len(r.over) == 1 and len(r.factors) == 2:
                for one, other in (r.factors, r.factors[::-1]):
                    both = {str(one), str(other)} <= self.operands.keys()
                    whole = Apply("mul", (one, other))
                    if both and ((x.tree, y.tree) == (one, other) or x.tree == y.tree == whole):
                        return r, self.operands[str(one)], self.operands[str(other)]
        return None

    def contracted(
        self, action: Action, axis: str, x: tuple[Elements, Operand], y: tuple[Elements, Operand],
        moved: Booleans, extents: tuple[int, ...],
    ) -> tuple[Form, Places]:  # fmt: skip
        """Return the reduced coordinates that a product adds to each of its sums.

        ``moved``: along which modes the sums move.  Along a mode of which nobody moves all is added
        again.
        """
        kept, gone = np.flatnonzero(moved), np.flatnonzero(~moved)
        found: list[tuple[Form, Places]] = []
        for held, operand in (x, y):
            for a, one, places in zip(
                operand.axes, held.forms[operand.name], held.at[operand.name], strict=True
            ):
                if moves(places, kept if a == axis else gone):
                    refuse(f"provenance: {action}: {a} of {operand.name} moves with "
                           f"{'the sums' if a == axis else 'the steps of ' + axis}")  # fmt: skip
                if a == axis:
                    first = places[first_along(places, kept)]
                    shape = np.where(moved, 1, extents)
                    found.append((one, np.broadcast_to(first, shape).ravel()))
        (form, added), (other, too) = found
        if form != other or (added != too).any():
            refuse(f"provenance: {action}: {axis} of the two factors differ: "
                   f"{line(form)}, {line(other)}")  # fmt: skip
        return form, added

    # Stores.

    def store(self, action: Action, do: Do, piece: Elements) -> None:
        """Ask that what is stored is the epilogue of its place."""
        name = do.write.buffer.name
        if name not in self.outputs:
            refuse(f"store: {action}: {name} is no output")
        output, epilogue = self.outputs[name]
        buffer = do.write.buffer
        if (buffer.shape, buffer.dtype) != (output.axes, output.dtype):
            uncertified(f"{action}: {name} of other axes")
        if any(isinstance(g, str) for g in do.write.guard) or do.write.trimmed:
            uncertified(f"{action}: edges of {name}")
        if do.instruction.atomic and not self.p.program.zeroed:
            refuse(f"store: {action}: it adds to what nobody cleared")
        if terms_of(piece.tree, self.parts) != terms_of(epilogue, self.parts):
            uncertified(f"{action}: it stores {piece.tree}, and the epilogue is {epilogue}")
        at, forms = self.places(action, do, do.write)
        for atom, every in piece.forms.items():
            axes = output.axes
            if atom in self.operands:
                axes = self.operands[atom].axes
            for a, one, places in zip(axes, every, piece.at[atom], strict=True):
                if a not in output.axes:
                    uncertified(f"{action}: {atom} along {a}")
                d = output.axes.index(a)
                if forms[d] != one or (at[d] != places).any():
                    refuse(f"store: {action}: {a} of {atom} is {line(one)} and a number, and it "
                           f"is stored at {line(forms[d])}, or at another number")  # fmt: skip
        shape = (len(self.threads(action, do)), *map(int, do.values))
        whole = [np.broadcast_to(x, shape).ravel() for x in at]
        if self.stored.setdefault(name, tuple(forms)) != tuple(forms):
            uncertified(f"{action}: stores of {name} at places of several forms")
        self.stores[action.number] = (name, whole)

    def tags(self, name: str) -> list[str]:
        """Return what a reduction's sums are called; CTAs that share it have a part each."""
        if self.shared is None:
            return [name]
        _, extent = self.p.program.cluster[self.shared]
        return [f"{name}@{rank}" for rank in range(int(extent))]


def is_product(action: Action) -> bool:
    """Say whether a statement may add products to what it writes."""
    do, entry = action.statement, action.entry
    if not isinstance(do, Do) or entry is None:
        return False
    if entry.makes == "applied" and do.variant == "add":
        return do.write in do.reads
    named = entry.makes == "products" or (entry.makes == "applied" and do.variant == "fma")
    return named and len(do.reads) == 3 and do.reads[2] == do.write
