"""Tensor instructions: TMA, matrices of 8 x 8, tensor memory, and products of tiles.

A tile that TMA writes and a product reads lies in shared memory as slabs of 128 B rows.  Such an
instruction has modes of its own: what the PTX ISA fixes of a product's rows, columns and k.

Source: PTX ISA 9, "mma", "wgmma", "tcgen05", "cp.async.bulk.tensor".
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tinygpu.isa.instruction import Instruction
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.term import program as term
from tinygpu.term.builder.digits import LoopIndex, differ, error
from tinygpu.term.builder.memory import Arithmetic, Array, Held, Piece, across, fitting, piece_of
from tinygpu.term.builder.synchronisation import BarrierUse
from tinygpu.term.operation import Operation
from tinygpu.term.program import Access, Affine, Buffer, Statement, select, var
from tinygpu.term.tensor_memory import LANES, RowLanes

__all__ = ["TensorInstructions"]

_SLICE_BYTES, _PAIR = 32, 2  # spec: PTX ISA, a product's k in bytes; neighbours in a register
_SHARE = re.compile(r"\s*(\w+) by (\w+)\s*")
_TMA_LOAD = INSTRUCTIONS["cp.async.bulk.tensor"]
_TMA_STORE = INSTRUCTIONS["cp.async.bulk.tensor.global"]
_EACH = "every thread would issue it"


class TensorInstructions(Arithmetic):
    """Instructions of a warp, a warpgroup or one thread that move or multiply tiles."""

    def __init__(self, name: str, operation: Operation) -> None:
        super().__init__(name, operation)
        self._lanes: dict[str, tuple[RowLanes, str, str]] = {}
        """Of a digit of rows in tensor memory the lanes, the digit of halves, and the pair."""

    def tmem(
        self, name: str, dtype: str, rows: str, columns: str, *, stages: int, pair: str = "",
        halves: str = "",
    ) -> Array:  # fmt: skip
        """Declare a ring of tiles in tensor memory: the sums of products, or their first factor.

        Rows go by lanes, as ``tinygpu.term.tensor_memory`` says; ``pair`` counts two CTAs that
        multiply together, and have as many rows each.  Columns that are loaded are said as
        tn = (half .. column): ``halves`` names the digit half, which counts to 2 where 64 rows of
        a pair have columns in two halves of the lanes, and else to 1.
        """
        for digit in (rows, columns):
            self._digits.require(digit)
        if pair:
            self._digits.require_by("tmem", pair, "the cluster")
        lanes = RowLanes(self._digits.extent(rows), bool(pair))
        if halves:
            self._digits.declare(halves, "a tile", lanes.halves)
        self._lanes.setdefault(rows, (lanes, halves, pair))
        wide = self._digits.extent(columns) // lanes.halves
        buffer = Buffer(
            self._free(name), "tmem", dtype, (LANES, wide), (wide, 1), stages, LANES * wide
        )
        self._lay_out(buffer)
        return Array(self._digits, buffer, (rows, columns), ring=True)

    def ldmatrix(self, into: Held, part: Piece) -> None:
        """Read matrices of 8 x 8 from shared memory into registers, a warp at a time.

        The pattern says what each lane gets: along the tile's lines it ends in a quad of lanes and
        their own pair, or with a group of 8 lanes, and then the matrices are turned (.trans).
        """
        self._each_thread("ldmatrix")
        digits = self._digits.joined(self._placed(part)[1])
        held = fitting(into, part.array.dtype, digits, f"{part.array.name} is read as")
        if part.array.buffer.level != "smem":
            raise error(f"ldmatrix: {part.array.name} is not in shared memory", "ldmatrix")
        self._move_matrices("ldmatrix", part, held)

    def stmatrix(self, part: Piece, held: Held) -> None:
        """Store matrices of 8 x 8 to shared memory: ``ldmatrix`` the other way."""
        self._each_thread("stmatrix")
        self._move_matrices("stmatrix", part, held)

    def _move_matrices(self, name: str, part: Piece, held: Held) -> None:
        place, modes = self._placed(part)
        how = "" if self._digits.counted(place.last) else "trans"
        there, wide = self._access(part, place, modes), self._vector(part, place, None)
        to, of = (held, there) if name == "ldmatrix" else (there, held)
        self._do(INSTRUCTIONS[name], to, of, modes, place, vector=wide, variant=how)

    def tma(
        self, tile: Piece | Array, part: Piece, *, signal: BarrierUse, share: str = "",
        trim: bool = True, by: Instruction = _TMA_LOAD,
    ) -> None:  # fmt: skip
        """Copy a tile from global memory by TMA; its bytes land at the barrier ``signal``.

        With ``share`` = "tm by rank_n" each of the CTAs that rank_n counts loads a part of tm, and
        sends it to all of them.  A pattern with tm = (head line) loads the lines of one ``head``, a
        loop's digit.  With tm = (half four next), m = (bm four half next) lines that follow one
        another in the tile lie apart in the array: two digits count them, in a box of more
        dimensions.  Of a tile's lines those beyond the array's end are left out (``trim``), if no
        sum goes over them and no tile value says where they begin; else zeros are loaded.  ``by``:
        another instruction that loads a tile.
        """
        tile = piece_of(tile)
        array, place = tile.array, self._place(part)
        down, right = self._elects("tma", array, part, array.slabbed)
        lines, wide = array.axes
        slab, extents = array.slab, {d: self._digits.extent(d) for d in array.axes}
        here, shared, rank = 0, "", ""
        turns, far, line = self._lines_of(array, part)
        down_tile = self._digits.along(lines, part.equations)[0] if turns or far else {}
        extents[lines] = self._digits.extent(far or line)
        apart, packed = 1, 1  # lines from one to the next: in the array, and in the tile
        if far:
            step = self._digits.along(part.array.axes[down], part.equations)[0][far]
            lines_on = down_tile[far]
            if isinstance(step, str) or isinstance(lines_on, str):
                raise error(f"tma: {far} is shared out over CTAs; give lines a known step", far)
            apart, packed = step, lines_on
        part_of_tile = sum((var(d, down_tile[d]) for d in turns), Affine())
        written = any(part.array.axes[down] in o.axes for o in self.op.outputs)
        if share:
            match = _SHARE.fullmatch(share)
            row = lines if written else wide
            if not match or match[1] not in (lines, row) or not self._digits.by(match[2]):
                raise error(f'tma: share {share!r} is not as "{row} by rank"', "share")
            shared, rank = match.groups()
            self._digits.require_by("tma", rank, "the cluster")
            extents[shared] = extents[shared] // self._digits.extent(rank)
            here = extents[shared]
        access = replace(self._access(part, place, ()), thread=())
        moved = [*access.origin]
        for axis, digit, step in zip((down, right), array.axes, (apart, 1), strict=True):
            if digit == shared:
                moved[axis] = moved[axis] + var(rank, here * step)
        steps = tuple(
            tuple([step * (axis == d) for d in range(len(moved))])
            for axis, step in ((right, 1), (down, apart), (right, slab), *[(down, 1)] * bool(far))
        )
        lies = self._digits.expanded(part.equations, part.array.axes[down])
        begins = any(self._digits.by(digit) == "a tile value" for digit in lies)
        guard, trimmed = (True,) * len(moved), trim and written and not begins and not far
        there = replace(access, value=steps, origin=tuple(moved), guard=guard, trimmed=trimmed)
        first = var(rank, here * packed) if shared == lines else Affine()
        to = (first + part_of_tile, Affine(), Affine())
        if shared == wide:
            to = (part_of_tile, Affine(), var(rank, extents[wide] // slab))
        within = ((0, 1, 0), (packed, 0, 0), (0, 0, 1), *[(1, 0, 0)] * bool(far))
        inside = Access(array.buffer, within, origin=to, index=tile.whole_use)
        near = (self._digits.extent(line),) * bool(far)
        values = (slab, extents[lines], extents[wide] // slab, *near)
        landing = (signal.barrier, signal.index)
        self._append(term.Do(by, inside, (there,), values, signal=landing, multicast=rank))

    def tma_store(self, part: Piece, tile: Piece | Array, *, by: Instruction = _TMA_STORE) -> None:
        """Copy a tile to global memory by TMA; ``k.commit("bulk")`` ends a group of such.

        Of a tile whose lines end at a tile value those beyond it are not stored.
        ``by``: another instruction that takes a tile from shared memory, such as one that adds.
        """
        tile = piece_of(tile)
        array, place = tile.array, self._place(part)
        self._elects("tma_store", array, part, not array.slabbed and len(array.axes) in (2, 3))
        row, column, *slabs = array.axes
        if any(digit not in place.steps for digit in slabs):
            text = f"tma_store: {array.name} has {slabs[0]}, and the pattern of {part.array.name}"
            raise error(f"{text} has not", part.array.name)
        modes = (column, row, *slabs)
        guard = (g if isinstance(g, str) else True for g in place.guard)
        there = replace(self._access(part, place, modes), thread=(), guard=tuple(guard))
        within = ((0, 1, 0), (1, 0, 0), (0, 0, 1)) if slabs else ((0, 1), (1, 0))
        read = Access(array.buffer, within, index=tile.whole_use)
        self._append(term.Do(by, there, (read,), self._digits.extents(modes)))

    def _elects(self, what: str, array: Array, part: Piece, swizzled: object) -> tuple[int, int]:
        """Return along which dimensions of an array a tile's lines count, and their elements.

        Raises ProgramError unless one thread copies it, and elements run along the last dimension.
        """
        self._one_thread(what, _EACH)
        axes, rank = part.array.axes, len(part.array.axes)
        if not swizzled or rank < 2:
            raise error(f"{what}: {array.name} is no tile with the swizzle it needs", array.name)
        ends = {self._digits.expanded(part.equations, axis)[-1]: i for i, axis in enumerate(axes)}
        turns, far, line = self._lines_of(array, part)
        lines, elements = (ends.get(digit, -1) for digit in (line, array.axes[1]))
        still = not any(map(self._digits.counted, turns))
        still &= not far or far in self._digits.expanded(part.equations, axes[lines])
        for axis, digit, found in ((-2, line, 0 <= lines < rank - 1 and still),
                                   (-1, array.axes[1], elements == rank - 1)):  # fmt: skip
            if not found:
                text = f"{what}: {part.array.name}'s axis {axes[axis]} has to end in {digit}"
                raise error(f"{text}, as the tile {array.name} has it", part.array.name)
        for name in axes:
            others = {*self._digits.expanded(part.equations, name)} - {far, line, *array.axes}
            if counted := sorted(filter(self._digits.counted, others)):
                text = f"{what}: {part.array.name}'s axis {name} has {counted[0]}"
                raise error(f"{text}, which the tile {array.name} has not", part.array.name)
        return lines, elements

    def _lines_of(self, array: Array, part: Piece) -> tuple[tuple[str, ...], str, str]:
        """Return in which digits a tile's lines are counted by the pattern of what is copied.

        Those that are not a box's; that of lines that lie apart, if two are; that of lines.
        """
        lines = array.axes[0]
        if lines not in part.equations:
            return (), "", lines
        *turns, line = self._digits.expanded(part.equations, lines)
        apart = bool(turns) and self._digits.counted(turns[-1])
        return (*turns[:-1],) if apart else (*turns,), turns[-1] if apart else "", line

    def mma(
        self, sums: Held, x: Held, y: Held, *, by: Instruction = INSTRUCTIONS["mma.sync"]
    ) -> None:
        """Add a warp's products of slices ``by`` mma.sync, by the names of the registers' digits.

        ``sums`` has blocks of rows, blocks of columns, a half (of 16 rows) and a pair of columns; x
        blocks of rows, half, half of k, word (what of k is in one register); y blocks of columns,
        half of k, word.
        """
        self._each_thread("mma")
        rows, along = (tuple(d for d in x.digits if (d in y.digits) == both) for both in (0, 1))
        columns = tuple(d for d in y.digits if d not in x.digits)
        pair = tuple(d for d in sums.digits if d not in (*rows, *columns))
        alone = ("a alone", rows, 2), ("b alone", columns, 1), ("the sums alone", pair, 1)
        wrong = [
            f"digits of {what} are {' '.join(digits) or 'none'}, and have to be {n}"
            for what, digits, n in (*alone, ("both", along, 2))
            if len(digits) != n
        ]
        if set(sums.digits) != {*rows, *columns, *pair} or wrong:
            got = " * ".join(" ".join(held.digits) for held in (x, y))
            text = f"mma: {' '.join(sums.digits)} += {got}; it computes"
            text += " far near half pair += far half deep word * near deep word"
            raise error("; ".join((text, *wrong)), "mma")
        modes = (*pair, rows[1], along[0], *columns, rows[0])
        # what fills a register alone serves both of a pair of sums
        first = along[1] if by.blocks_of(x.buffer.dtype).each > 1 else ""
        left, right = (self._own(held, (first, *modes[1:])) for held in (x, y))
        total = self._own(sums, modes)
        reads, values = (left, right, total), self._digits.extents(modes)
        self._append(term.Do(by, total, reads, values, variant="fma"))

    def wgmma(
        self, sums: Held, x: Held | Piece | Array, y: Piece | Array, *, fresh: LoopIndex | bool
    ) -> None:
        """Add the product of two tiles, by the digits of the sums; where ``fresh`` is 0, set it.

        Patterns say how digits count: x["tm = (.. warp half octet)"] the rows, y["tn = (.. group
        quad pair)"] the columns.  x may lie in registers, values by rows and digits of k, of 16
        bits two, of 8 bits three, or two of which one counts four; y's pattern then says how those
        count k, with the quad of threads: "tk = (group quad pair)", "tk = (group quad duo pair)".
        ``fresh`` True sets the sums, False adds to them.
        """
        self._warpgroup("wgmma")
        self._each_thread("wgmma")
        x, y = x if isinstance(x, Held) else piece_of(x), piece_of(y)
        slab, threads = y.array.slab, self._digits.threads
        if not y.array.slabbed or (isinstance(x, Piece) and differ(x.array.slab, slab)):
            raise error("wgmma: both tiles need swizzle=128", "wgmma")
        if isinstance(fresh, LoopIndex):
            self._digits.in_scope(fresh)
        row_axis, depth, column_axis = self._factors(x, y)
        columns, along = (self._digits.on_chip(axis, y.equations) for axis in (column_axis, depth))
        if isinstance(x, Piece):
            rows = self._digits.on_chip(row_axis, x.equations)
        else:
            rows = dict.fromkeys((d for d in x.digits[::-1] if d not in along), 0)
        half, far, pair, groups = self._of_sums(sums, rows, columns)
        step, many = _SLICE_BYTES // y.array.buffer.type.bytes, self._digits.extent(depth)
        slices, slabs = slab // step, many // slab
        still, more = (0, 0, 0), len(groups) * 2
        if isinstance(x, Piece):
            counts, of_k = [step], [across(y.array, depth, 1)]
            left = Access(
                x.array.buffer,
                (across(x.array, depth, 1), still, across(x.array, row_axis, rows[half]),
                 *(still,) * more),
                tuple(across(x.array, row_axis, rows.get(d, 0)) for d in threads),
                self._origin(x.array, {row_axis: {**self._moving(rows), "block": rows.get(far, 0)},
                                       depth: {"slab": slab, "slice": step}}),
                x.use,
            )  # fmt: skip
        else:
            words, deep, quad = self._of_depth(x, along, (half, far))
            word = [along[d] for d in words]
            if four := len(words) == 1 and x.buffer.type.bytes == 1:
                word += [2 * along[words[0]]]  # a digit of four is two of two
            counts = [*(_PAIR for _ in word), self._digits.extent(quad), _PAIR]
            of_k = [across(y.array, depth, step) for step in (*word, along[quad], along[deep])]
            if y.array.axes[-1] != depth:  # a line for each of k, as many as there are
                slices, slabs = -(-many // step), 1
            at = {far: var("block"), deep: var("slab", slab * _PAIR // step) + var("slice", _PAIR)}
            modes_of_x = (*words, "", deep, "", half, *("",) * more)
            left = self._own(x, modes_of_x, len(threads), at)
            if four:
                one, *others = left.value
                left = replace(left, value=(one, tuple(2 * s for s in one), *others))
        each = (self._in_slabs(y.array, column_axis, columns[d], d) for d in groups)
        modes = [mode for both in each for mode in both]
        right = Access(
            y.array.buffer,
            (*of_k, across(y.array, column_axis, columns[pair]), still, *(s for _, s, _ in modes)),
            tuple(across(y.array, column_axis, columns.get(d, 0)) for d in threads),
            self._origin(y.array, {column_axis: self._moving(columns),
                                   depth: {"slab": slab, "slice": step}}),
            y.use,
        )  # fmt: skip
        of_sums = (*("",) * len(counts), pair, half, *groups)
        total = self._own(sums, of_sums, len(threads), {far: var("block")})
        first, steps = len(counts) + _PAIR, (times for *_, times in modes)
        twice = (step for step in total.value[first:] for _ in range(2))
        values = (tuple(n * s for s in step) for n, step in zip(steps, twice, strict=True))
        total = replace(total, value=(*total.value[:first], *values))
        anew = (fresh.affine if isinstance(fresh, LoopIndex) else Affine()) + var("slab")
        extents = (*counts, *self._digits.extents((pair, half)), *(n for n, *_ in modes))
        body: Statement = term.Do(
            INSTRUCTIONS["wgmma"], total, (left, right, total), extents,
            self._digits.extents(threads), variant="fma",
            fresh=None if fresh is False else anew + var("slice"),
        )  # fmt: skip
        blocks = self._digits.extent(far) if far else 1
        for name, count in (("block", blocks), ("slice", slices), ("slab", slabs)):
            body = term.For(name, count, (body,), unrolled=True)
        self._append(term.Fence("wgmma"), body, term.Commit("wgmma"))

    def _factors(self, x: Held | Piece, y: Piece) -> tuple[str, str, str]:
        """Return the axes of a product: its rows (none in registers), its sum's, its columns."""
        if isinstance(x, Piece):
            rows, depth = _by_k(x, y)
            columns, other = _by_k(y, x)
            if depth == other and not {depth} & {*x.equations, *y.equations}:
                return rows, depth, columns
            got = f"{' '.join(x.array.axes)} * {' '.join(y.array.axes)}"
            raise error(f"wgmma: {got}; it multiplies tm tk * tn tk, all of tk", "wgmma")
        own = {*x.digits}
        for depth, columns in (y.array.axes, y.array.axes[::-1]):
            if own & {*self._digits.along(depth, y.equations)[0]}:
                return "", depth, columns
        text = f"wgmma: no digit of {x.name} counts {' or '.join(y.array.axes)} of {y.array.name}"
        raise error(f"{text}; say how in a pattern of that", "wgmma")

    def _of_sums(
        self, sums: Held, rows: Mapping[str, int], columns: Mapping[str, int]
    ) -> tuple[str, str, str, list[str]]:
        """Return the digits of sums: half, far (or none), pair, groups, fastest first."""
        down, right = (list(filter(self._digits.counted, digits)) for digits in (rows, columns))
        half, far = (*down, "", "")[:2]
        pair, *groups = (*right, *[""] * (not right))
        if {*sums.digits} != {*down, *right} or not half or not groups or len(down) > 2:
            got = f"{' '.join(sums.digits)} += ({' '.join(rows)}) * ({' '.join(columns)})"
            text = f"wgmma: {got}; rows are (far half) of the sums' digits, columns (group pair)"
            raise error(f"{text}, fastest last: write patterns as tm = (far warp half octet)",
                             "wgmma")  # fmt: skip
        return half, far, pair, groups

    def _of_depth(
        self, x: Held, along: Mapping[str, int], rows: tuple[str, ...]
    ) -> tuple[tuple[str, ...], str, str]:
        """Return the digits that count k in registers: of a word, deep, and the quad of threads."""
        digits = tuple(filter(self._digits.counted, along))
        quads = [d for d in along if self._digits.by(d) == "threads"]
        words, narrow = digits[:-1], x.buffer.type.bytes == 1
        counted = len(words) == 1 or (narrow and len(words) == 2)
        if narrow and counted:
            counted = not differ(math.prod(self._digits.extents(words)), _PAIR * _PAIR)
        if not counted or len(quads) != 1 or {*x.digits} != {*digits, *filter(None, rows)}:
            text = f"wgmma: {x.name} has {' '.join(x.digits)}, and ({' '.join(along)}) counts k"
            want = "a digit, a quad and four" if narrow else "a digit, a quad and a pair"
            raise error(f"{text}; they have to be {want}", "wgmma")
        return words, digits[-1], quads[0]

    def _moving(self, steps: Mapping[str, int]) -> dict[str, int]:
        """Return the steps of digits that neither threads nor an instruction count."""
        return {d: s for d, s in steps.items()
                if not self._digits.counted(d) and self._digits.by(d) != "threads"}  # fmt: skip

    def _origin(self, array: Array, axes: Mapping[str, Mapping[str, int]]) -> tuple[Affine, ...]:
        """Return where a slabbed tile's part begins, by the steps of variables along its axes."""
        found = [Affine()] * 3
        for axis, steps in axes.items():
            for name, step in steps.items():
                for d, one in enumerate(across(array, axis, step)):
                    if not isinstance(one, int) or one:
                        found[d] = found[d] + var(name, one)
        return tuple(found)

    def _in_slabs(
        self, array: Array, axis: str, step: int, digit: str
    ) -> list[tuple[int, tuple[int, ...], int]]:
        """Return a digit as two modes, in a slab and beyond: extent, way, steps of the digit."""
        extent, near = self._digits.extent(digit), self._digits.extent(digit)
        if array.axes[-1] == axis:
            room = select(step < array.slab, array.slab // step, 1)
            near = select(extent < room, extent, room)
        if isinstance(near, int) and near < 1:
            raise error(f"digit {digit}: has no elements; it needs one at least", digit)
        ways = (across(array, axis, step), across(array, axis, step * near))
        beyond = extent // select(np.less(near, 1), 1, near)  # 0: of a point that is not legal
        return [(near, ways[0], 1), (beyond, ways[1], near)]

    def tcgen05_mma(self, sums: Piece, x: Piece, y: Piece, *, fresh: LoopIndex) -> None:
        """Add the product of two tiles, tm tn += tm tk * part tk; where ``fresh`` is 0, set it.

        x lies in shared memory, or in tensor memory as the sums do.  Of a pair each CTA has its
        rows of x and sums, and one of two parts of y's columns; the first multiplies for both.
        """
        self._one_thread("tcgen05_mma", _EACH)
        rows, depth = _by_k(x, y)
        columns, other = _by_k(y, x)
        total, (lanes, _, pair) = sums.array.axes, self._in_lanes(sums, "tcgen05_mma")
        part, parts = self._digits.extent(columns), 2 if pair else 1
        wrong = differ(part * parts, self._digits.extent(total[1]))
        if (depth, rows) != (other, total[0]) or wrong:
            got = f"{' '.join(total)} += {rows} {depth} * {columns} {other} ({parts} CTAs)"
            text = f"tcgen05_mma: {got}; it computes tm tn += tm tk * part tk"
            raise error(text, "tcgen05_mma")
        in_tmem, slab = x.array.buffer.level == "tmem", y.array.slab
        if not y.array.slabbed or (differ(x.array.slab, slab) and not in_tmem):
            raise error("tcgen05_mma: tiles in shared memory need swizzle=128", "tcgen05_mma")
        self._digits.in_scope(fresh)
        step, near = _SLICE_BYTES // y.array.buffer.type.bytes, lanes.near
        within, at, still = var("slice", step), var("slab"), ((0, 0, 0),) * 3
        along = var("slab", slab) + within
        wide = slab if y.array.axes[-1] == columns else part
        of_y: tuple[tuple[int, ...], ...] = ((0, 1, 0), (1, 0, 0), (wide, 0, 0))
        from_y: tuple[Affine, ...] = (Affine(), within, at)
        if y.array.axes[-1] == columns:
            of_y, from_y = ((1, 0, 0), (0, 1, 0), (0, 0, 1)), (along, Affine(), Affine())
        of_x: tuple[tuple[int, ...], ...] = ((0, 1, 0), *still, (1, 0, 0), (near, 0, 0))
        from_x: tuple[Affine, ...] = (Affine(), within, at)
        if in_tmem:
            of_x, from_x = tuple(each[:2] for each in of_x), (Affine(), along)
        elif x.array.axes[-1] == rows:  # a slab has those of all near lanes
            of_x = ((1, 0, 0), *still, (0, 1, 0), (0, near % slab, near // slab))
            from_x = (along, Affine(), Affine())
        folded = lanes.halves == 2
        half = (select(folded, LANES // 2, 0), select(folded, 0, part))
        into = Access(
            sums.array.buffer, ((0, 0), (0, 1), (0, wide), half, (1, 0), (lanes.apart, 0)),
            index=sums.whole_use,
        )  # fmt: skip
        left = Access(x.array.buffer, of_x, origin=from_x, index=x.whole_use)
        right = Access(y.array.buffer, (*of_y, *still), origin=from_y, index=y.whole_use)
        values = (step, wide, part // wide, parts, near, self._digits.extent(rows) // near)
        body: Statement = term.Do(
            INSTRUCTIONS["tcgen05.mma"], into, (left, right, into), values, variant="fma",
            multicast=pair, fresh=fresh.affine + at + var("slice"),
        )  # fmt: skip
        for name, count in (("slice", slab // step), ("slab", self._digits.extent(depth) // slab)):
            body = term.For(name, count, (body,), unrolled=True)
        self._append(body)

    def tcgen05_cp(self, to: Piece, tile: Piece) -> None:
        """Copy a swizzled tile that lies along k to tensor memory, for ``tcgen05_mma``."""
        self._one_thread("tcgen05_cp", _EACH)
        self._in_lanes(to, "tcgen05_cp")
        slab, (rows, depth) = tile.array.slab, to.array.axes
        if not tile.array.slabbed or {*tile.array.axes} != {rows, depth}:
            text = f"tcgen05_cp: {to.array.name} has {rows} {depth}; {tile.array.name} needs them,"
            raise error(f"{text} and swizzle=128", "tcgen05_cp")
        step = _SLICE_BYTES // tile.array.buffer.type.bytes
        into = ((0, 1), (1, 0), (0, step), (0, slab))
        of = ((0, 1, 0), (1, 0, 0), (0, step, 0), (0, 0, 1))
        write = Access(to.array.buffer, into, index=to.whole_use)
        read = Access(tile.array.buffer, of, index=tile.whole_use)
        values = (step, self._digits.extent(rows), slab // step, self._digits.extent(depth) // slab)
        self._append(term.Do(INSTRUCTIONS["tcgen05.cp"], write, (read,), values))

    def tcgen05_ld(self, part: Piece, *, name: str = "taken") -> Held:
        """Load columns of sums in tensor memory: each thread of a warpgroup those of its lane."""
        self._warpgroup("tcgen05_ld")
        lanes, half, _ = self._in_lanes(part, "tcgen05_ld")
        array, (rows, columns) = part.array, part.array.axes
        first, *others = self._digits.expanded({columns: (columns,), **part.equations}, columns)
        if first != half or not others or any(map(self._digits.counted, others[:-1])):
            text = f"tcgen05_ld: {columns} of {array.name} has to be ({half or 'halves'} .. column)"
            raise error(f"{text}, as k.tmem declares it with halves=", array.name)
        *others, column = others
        origin, step = Affine(), self._digits.extent(column)
        for digit in reversed(others):
            origin, step = var(digit, step) + origin, step * self._digits.extent(digit)
        held = self._rows(name, array.dtype, (half, rows, column), lanes)
        write, values = self._in_full(held)
        by = ((1, 0), (lanes.near, 0), (lanes.apart, 0))
        read = Access(array.buffer, ((0, 1),), by, (Affine(), origin), part.use)
        self._append(lanes.of(term.Do(INSTRUCTIONS["tcgen05.ld"], write, (read,), values)))
        return held

    def _in_lanes(self, tile: Piece, what: str) -> tuple[RowLanes, str, str]:
        """Return where a tile's rows lie in tensor memory, its digit of halves, and the pair."""
        if tile.array.buffer.level != "tmem":
            name = tile.array.name
            raise error(f"{what}: {name} lies not in tensor memory; declare k.tmem", name)
        return self._lanes[tile.array.axes[0]]


def _by_k(one: Piece, other: Piece) -> tuple[str, str]:
    """Return the digit of a factor's rows or columns, and the one that both factors have."""
    own, both = one.array.axes
    return (both, own) if own in other.array.axes else (own, both)
