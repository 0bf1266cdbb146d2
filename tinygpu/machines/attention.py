"""The machine ``attention``: softmax(scale q k^T + mask) v by TMA, mbarriers and wgmma (sm_90a).

A CTA takes a block of queries of one head.  Its producer loads them, and then blocks of keys and
values, the last block first, into two rings of stages in shared memory.  CTAs of a cluster have
neighbouring queries; each loads a part of a block of keys or values for all of them.  Each of one
to three consumer warpgroups has 64 of the queries: it multiplies them with a block of keys, keeps
each row's maximum and sum, and multiplies the rounded weights, which stay in registers, with the
values.  In which order it does that is a decision (``consumer_order``): the second product of a
block may fly under the softmax of the next one.

For few queries the rows of a block are heads that share keys (``pack_gqa``), and CTAs of a cluster
have a part of a tile's keys each (``split_kv``): behind their loops they send each other what they
have summed up, and each stores a slice of the columns.

Blocks that no row of a cluster sees are left out.  The first and the last ones alone are masked:
those that an edge of the window or the end of the keys may cut.

Source: J. Shah et al., "FlashAttention-3", arXiv:2407.08608; T. Dao, "FlashAttention-2",
arXiv:2307.08691.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import cache
from typing import ClassVar

from tinygpu.errors import OperationError
from tinygpu.isa.memory import DTYPES, GMEM, L2, REGISTERS, SMEM
from tinygpu.term.builder import Array, Held, Kernel, LoopIndex, Piece, Tile, TileValue
from tinygpu.term.expression import Constant, Expression, apply, value
from tinygpu.term.machine import Choice, Chosen, Machine, Requirement, Value, instructions
from tinygpu.term.operation import Operation, Problem, attention, window_of
from tinygpu.term.orders import LoopPart, Orders, orders_of
from tinygpu.term.program import select

__all__ = [
    "STARTS",
    "Attention",
    "FlashAttention",
    "KeyShares",
    "RowStatistics",
    "consumer_orders",
    "orders_in",
]

_BLOCK = 64  # spec: PTX ISA, wgmma's rows
_LENGTH = TileValue("length")
"""How many keys a tile's sequence has, where each has its own."""
_LOG2_E = math.log2(math.e)
_LEAST = -(2.0**100)
"""Below any score, and finite when it is scaled: a row without a visible key has weights 0."""
_PACKED = {
    0: ("bg", "(bm rank tm)"),
    1: ("(bg rank tm)", "bm"),
    8: ("(bg rank w warp half)", "(bm octet)"),
    16: ("(bg rank w warp)", "(bm half octet)"),
}
"""Heads and queries of a block's rows, by how many queries it has."""
_ROWS, _KEYS = "tm = (w warp half octet)", "tn = (group quad pair)"
_KEYS_OF_8_BITS, _COLUMNS_OF_8_BITS = "tn = (group quad duo pair)", "tn = (duo group quad pair)"
"""Of e4m3 a thread's weights are those of four keys that follow one another, as the product with
the values takes them: keys lie in shared memory by the columns that a thread has of a product."""
_FOURS = "four two next", "tn = (two four next)"
"""How keys lie in memory and how in a tile by columns: pairs of every four, then the others."""
_HEADROOM = 8.0
"""Of e4m3 weights are times 2^8, so that small ones are no subnormal numbers; 448 is the most."""
_LINE, _SLICE = 128, 32  # elements of 8 bits in a line of a swizzle, keys of a product
_SLAB, _SLAB_KEYS = 64, "tn = (span group quad pair)"  # 128 B of 16-bit weights
_OWN_ROWS, _OF_QUERIES = "high = (warp half octet)", "td = (deep quad word)"
_SLICES = "te = (chunk peer wide quad both)"


class FlashAttention(Machine):
    """What machines of attention have in common: the operation, trips of a tile, the mask.

    A tile has ``span`` queries, ``rows`` for each CTA; a step takes ``stride`` keys, a block of
    ``tile_n`` for each CTA.  ``heads_by``, ``tile_by`` and ``blocks_by`` say where a CTA's heads,
    queries and keys lie, ``rows_by`` and ``keys_by`` in which digits threads hold them.
    """

    numeric = True
    operations = ("attention",)
    dtypes = ("bf16", "f16")
    narrow: ClassVar[tuple[str, ...]] = ()
    """Types of 8 bits that it does, too, to bf16 and with scales."""
    rows_by: ClassVar[str]
    copied: ClassVar[str]
    """What has to be a multiple of 16 B."""
    windowed: ClassVar[bool] = False
    """Whether it does windows."""
    paged: ClassVar[bool] = False
    """Whether it reads keys and values in pages, and so many as each sequence has."""
    tile_n: int

    @property
    def keys_by(self) -> str:
        """In which digits threads hold keys."""
        raise NotImplementedError

    def keys_of(self, k: Kernel) -> str:
        """Return in which digits threads hold keys of a kernel's type."""
        return self.keys_by

    @property
    def tile_by(self) -> str:
        """Where a CTA's queries lie."""
        return "m = (bm tm)"

    @property
    def heads_by(self) -> str:
        """Which heads a CTA has."""
        return "l = bl, h = bh, g = bg"

    @property
    def blocks_by(self) -> str:
        """Where a CTA's blocks of keys lie."""
        return "n = (kt tn)"

    @property
    def stride(self) -> int:
        """Keys of a step: of all CTAs that share a tile's keys."""
        return self.tile_n

    @property
    def rows(self) -> int:
        """Queries of a CTA."""
        raise NotImplementedError

    @property
    def span(self) -> int:
        """Queries of a tile: of all CTAs of a cluster."""
        return self.rows

    def check(self, operation: Operation) -> None:
        """Raise OperationError if this machine cannot do the operation."""
        dtype, scaled = operation.inputs[0].dtype, bool(operation.scalars)
        if dtype not in self.narrow or operation.name not in self.operations:
            super().check(operation)
        masks = ["none", "causal"]
        if self.windowed and (window := window_of(operation)) and None not in window:
            masks.append("window:{}:{}".format(*window))
        if (operation.pages or operation.lengths) and not self.paged:
            what = "keys and values in pages" if operation.pages else "a length of each sequence"
            raise OperationError(
                f"machine {self.name}: {operation.name} with {what}; choose the machine attention"
            )
        size = operation.pages.size if operation.pages else 0
        scales = dtype in self.narrow and len(operation.inputs) > 3
        lse, lengths = bool(operation.further), operation.lengths is not None
        if operation not in [
            attention(
                dtype, mask=m, scale=scaled, lse=lse, pages=size, lengths=lengths, scales=scales
            )
            for m in masks
        ]:
            raise OperationError(
                f"machine {self.name}: {operation.name} with the mask {operation.mask}; it does "
                "attention(..) of tinygpu.term.operation, with mask "
                f"{'none, causal or window:LEFT:RIGHT' if self.windowed else 'none or causal'}"
            )

    def check_sizes(self, sizes: Mapping[str, int]) -> None:
        """Raise OperationError for a head dimension that copies or the widest tile refuse."""
        widest = max(int(n) for n in self.decisions()["depth"].values)
        for axis in "de":
            if sizes[axis] > widest or sizes[axis] % 8:
                raise OperationError(
                    f"machine {self.name}: {axis} is {sizes[axis]}; a head dimension is a multiple "
                    f"of 8, as {self.copied} are of 16 B, and at most {widest}; pad it with zeros "
                    "to a multiple of 8, or split it"
                )

    def tiles(self, k: Kernel) -> Iterator[Tile]:
        """Trace a tile; under a mask each has trips of its own: blocks that its rows see.

        Under a window it begins at a block of its own, too.
        """
        left, right = window_of(k.op)
        own, keys = dict[str, Expression](), value("n")
        if lengths := k.op.lengths:
            there = apply("element", value(lengths.name), value("bl"))
            own[_LENGTH.name] = apply("min", apply("max", there, 0), keys)
            keys = value(_LENGTH.name)
        if right is None:
            own |= {"trips": keys.ceildiv(self.stride)} if own else {}
            return k.tiles(start="", step=1, **own)
        rows, ahead = Constant(self.span), keys - value("m")
        end = (value("bm") + Constant(1)) * rows + ahead
        seen = apply("min", keys, end + right if right else end)
        blocks = apply("max", seen, 0).ceildiv(self.stride)
        if left is None:
            return k.tiles(start="", step=1, **own, trips=blocks)
        first = apply("max", value("bm") * rows + ahead - left, 0)
        begin = (first + 1).ceildiv(self.stride) - 1
        return k.tiles(
            start="", step=1, **own, begin=begin, trips=apply("max", blocks - value("begin"), 0)
        )

    def steps(self, k: Kernel, tile: Tile, first: int | None = None) -> Iterator[LoopIndex]:
        """Trace a block of keys of a tile; with ``first`` so many are written out, and no more."""
        left, right = window_of(k.op)
        start = tile.begin if left is not None else None
        trips = None if right is None and not k.op.lengths else tile.trips
        return k.loop("kt", trips=trips, start=start, first=first)

    def mask(self, k: Kernel, scores: Held, step: LoopIndex) -> None:
        """Set scores to minus infinity that a query does not see, in blocks that may have such."""
        key = k.at(f"{self.blocks_by}, {self.keys_of(k)}", step.last - step)
        keys = k.size(_LENGTH if k.op.lengths else "n")
        last = k.at(f"{self.tile_by}, {self.rows_by}") + (keys - k.size("m"))
        left, right = window_of(k.op)
        cut = -(-(self.span - 1) // self.stride) + 1
        with k.when(step < (1 if right is None else cut)):
            if right is not None:
                k.fill(scores, -math.inf, where=key > last + right)
            if right != 0:
                k.fill(scores, -math.inf, where=key >= keys)
        if left is not None:
            with k.when(step.last - step < cut):
                k.fill(scores, -math.inf, where=key < last - left)


class Attention(FlashAttention):
    """Flash attention forward by warpgroup products of 16-bit inputs, fp32 sums and statistics."""

    name, entry = "attention", "hopper_attention"
    levels = (GMEM, L2, SMEM, REGISTERS)
    instructions = instructions(
        "cp.async.bulk.tensor", "cp.async.bulk.tensor.global", "mbarrier", "wgmma", "cvt",
        "ldmatrix", "stmatrix", "st.shared", "ld.shared", "fence.proxy.async", "bar.sync",
        "barrier.cluster", "shfl.sync",
        "ld.global", "st.global", "fma", "alu", "mufu", "mov",
    )  # fmt: skip
    several, windowed, paged = True, True, True
    narrow = ("e4m3",)
    rows_by = _ROWS
    copied = "TMA's lines"
    spread = ("consumers", "tile_n")
    tied = ("queries", "softmax")

    depth = Choice(128, 64, 192, 256, meaning="head dimension that the kernel is for")
    consumers = Choice(1, 2, 3, structural=True, meaning="warpgroups that multiply, 64 rows each")
    tile_n = Choice(64, 80, 96, 112, 128, 144, 160, 176, 192, meaning="keys in a block")
    stages_k = Choice(1, 2, 3, 4, meaning="blocks of keys in shared memory")
    stages_v = Choice(1, 2, 3, 4, meaning="blocks of values in shared memory")
    stages_q = Choice(1, 2, meaning="blocks of queries in shared memory")
    consumer_order: Choice[str] = Choice(
        orders=lambda: consumer_orders(),
        meaning="what a consumer does in a step, a letter each; see docs/attention.md",
    )
    producer_order = Choice(
        *("QKV", "KQVK", "QKKV", "KQKV"), reorders=True, before="QKV",
        meaning="loads of a tile: the last two letters are a step's, the others come before",
    )  # fmt: skip
    turns = Choice(
        "none", "named", "mbarrier", structural=True, meaning="by what two consumers take turns"
    )
    queries = Choice(
        "shared",
        "registers",
        structural=True,
        before="shared",
        meaning="where products take queries from",
    )
    weights = Choice(
        "registers",
        "shared",
        structural=True,
        before="registers",
        meaning="where products take weights from",
    )
    softmax = Choice(
        "at once",
        "by rows",
        structural=True,
        before="at once",
        meaning="a thread's rows: all maxima, then all weights; or weights of one under the "
        "other's maximum",
    )
    epilogue = Choice("direct", "tma", structural=True, meaning="how rows reach o")
    persistent = Choice(0, 1, meaning="CTAs stay for several tiles (1)")
    order = Choice(
        "straight",
        "longest",
        "snake",
        "zigzag",
        structural=True,
        meaning="queries that come first; snake: last ones of all heads, visits back and forth; "
        "zigzag: last ones of some heads, first ones of the next",
    )
    together = Choice("kv heads", "group", structural=True, meaning="heads that are neighbours")
    raster = Choice(1, 2, 4, 8, 16, 32, meaning="neighbours visited together")
    early = Choice(0, 1, meaning="start while the kernel before ends (1)")
    cluster_m = Choice(1, 2, before=1, meaning="CTAs of a cluster: they share keys and values")
    split_kv = Choice(
        1,
        2,
        4,
        8,
        structural=True,
        before=1,
        meaning="CTAs of a cluster that have a part of a tile's keys each, and store a part of it",
    )
    pack_gqa = Choice(
        0,
        1,
        8,
        16,
        structural=True,
        before=0,
        meaning="queries of a block whose other rows are heads that share keys; 0: of one head",
    )

    @property
    def keys_by(self) -> str:
        """In which digits threads hold keys; of weights in shared memory 64 at a time."""
        return _KEYS if self.weights == "registers" else _SLAB_KEYS

    def keys_of(self, k: Kernel) -> str:
        """Return in which digits threads hold keys of a kernel's type."""
        return _KEYS_OF_8_BITS if _narrow(k.op) else self.keys_by

    def keys_at(self, k: Kernel) -> str:
        """Return where a tile of keys lies: of 8 bits one half of its lines after the other."""
        if not _narrow(k.op):
            return self.whole
        fours, lines = _FOURS
        blocks = self.blocks_by.replace("tn", fours)
        return f"{self.whole.replace(self.blocks_by, blocks)}, {lines}"

    @property
    def tile_by(self) -> str:
        """Where a CTA's queries lie, in which digits threads hold them."""
        return f"m = {_PACKED[self.pack_gqa][1]}"

    @property
    def heads_by(self) -> str:
        """Which heads a CTA has: one, or those that share keys, in which digits of threads."""
        return f"l = bl, h = bh, g = {_PACKED[self.pack_gqa][0]}"

    @property
    def blocks_by(self) -> str:
        """Where a CTA's blocks of keys lie: each of a cluster takes one after the other's."""
        return "n = (kt tn)" if self.split_kv == 1 else "n = (kt rank_n tn)"

    @property
    def stride(self) -> int:
        """Keys of a step: of all CTAs that share a tile's keys."""
        return self.split_kv * self.tile_n

    @property
    def whole(self) -> str:
        """Where tiles of the inputs lie; of several heads, the queries of one."""
        rows = f"{self.heads_by}, {self.tile_by}"
        if self.pack_gqa > 1:
            rows = "l = bl, h = bh, g = (bg rank head), m = (bm line), tm = (head line)"
        return f"{rows}, d = td, {self.blocks_by}, e = te"

    @property
    def out_by(self) -> str:
        """In which digits a thread holds columns of o; ``peer``: of which CTA's slice."""
        return "te = (chunk wide quad both)" if self.split_kv == 1 else _SLICES

    def requires(self, operation: Operation, choose: Chosen) -> tuple[Requirement, ...]:
        """Return what this machine's decisions have to agree on."""
        d = choose
        room = select(d.consumers < 3, 208, 128)
        shared, ahead = d.weights == "shared", d.queries == "registers"
        narrow = _narrow(operation)
        part = 8 if narrow else 4  # of a row, or of a block's keys, in a register
        held = d.tile_n // 2 + d.depth // 2 + (d.depth // part if ahead else 0)
        every = held + d.tile_n // part
        eight_bits = Requirement(
            "eight_bits",
            not shared
            and (d.tile_n % _SLICE == 0)
            & (d.depth % _LINE == 0)
            & ((d.depth == _LINE) | (d.epilogue == "tma")),
            "of 8 bits products take 32 keys, and lines have 128 dimensions; weights lie in "
            "registers, which do not hold rows of more than 128 rounded",
            "choose tile_n 64, 96, 128, 160 or 192, depth 128, or 256 with epilogue tma, and "
            "weights registers",
        )
        return (
            *(eight_bits,) * narrow,
            Requirement(
                "statistics",
                (held if shared else every) <= room,
                "scores, weights, sums and queries leave a thread registers to work with",
                "lower tile_n, depth or consumers, or choose queries shared",
            ),
            Requirement(
                "weights_in_memory",
                not shared or ((every > room) & (d.tile_n % _SLAB == 0)),
                "weights that registers do not hold lie in shared memory, in rows of 128 B",
                "choose weights registers, or tile_n 64, 128 or 192",
            ),
            Requirement(
                "queries_held",
                not ahead or ((d.stages_q == 1) & (d.consumers > 1) & (not shared)),
                "several consumers hold queries, whose one stage is free at once, and weights",
                "choose queries shared; or stages_q 1, weights registers and consumers 2 or 3",
            ),
            Requirement(
                "by_rows",
                d.softmax == "at once" or (not narrow and not shared),
                "weights of a thread's rows lie in registers, and are of 16 bits",
                "choose softmax at once; or weights registers",
            ),
            Requirement(
                "in_turn",
                (d.turns == "none") | (d.consumers == 2),
                "two consumers multiply in turn",
                "choose consumers 2, or turns none",
            ),
            Requirement(
                "unused",
                ((d.stages_q == 1) | (d.persistent == 1))
                & (d.together == "kv heads" or d.raster > 1),
                "a decision about what the kernel does not have stays at its first value",
                "choose stages_q 1, or persistent 1; choose together kv heads, or raster 2",
            ),
            Requirement(
                "split_kv",
                d.split_kv == 1
                or (
                    (d.epilogue, d.turns, d.weights) == ("direct", "none", "registers")
                    and (d.order, d.together) == ("straight", "kv heads")
                    and (d.persistent == 0) & (d.cluster_m == 1)
                ),
                "CTAs that share the keys of a tile have one, and store slices from registers",
                "choose split_kv 1; or persistent 0, cluster_m 1, epilogue direct, turns none, "
                "weights registers, order straight and together kv heads",
            ),
            Requirement(
                "pack_gqa",
                not d.pack_gqa
                or (
                    d.weights == "registers"
                    and (d.order, d.together) == ("straight", "kv heads")
                    and (d.pack_gqa == 1 or d.epilogue == "direct")
                    and (d.consumers == 1) & (d.cluster_m == 1)
                ),
                "a block of several heads has few queries, and its tiles have no order to choose; "
                "TMA stores lines of one axis",
                "choose pack_gqa 0; or consumers 1, cluster_m 1, weights registers, order "
                "straight, together kv heads and epilogue direct",
            ),
            Requirement(
                "back_and_forth",
                d.order not in ("snake", "zigzag")
                or (
                    operation.mask is not None
                    and (d.persistent == 1) & ((d.raster == 1) | (d.order == "zigzag"))
                ),
                "CTAs that stay go back and forth over tiles of unequal length; in a snake all "
                "heads of a block of queries after another",
                "choose a mask, persistent 1 and for a snake raster 1, or order longest",
            ),
        )

    def worth(self, problem: Problem, sms: int) -> Mapping[str, tuple[Value, ...]]:
        """Keep to one head a block that queries fill, and to whole keys where tiles fill SMs."""
        sizes = problem.sizes
        heads, queries = sizes["g"], sizes["m"]
        packed = next((most for most in (1, 8, 16) if queries <= most), 0) if heads > 1 else 0
        tiles = sizes["l"] * sizes["h"] * -(-heads * queries // _BLOCK)
        split = tuple(n for n in (1, 2, 4, 8) if n == 1 or tiles * n // 2 < sms)
        kept = {"pack_gqa": tuple(dict.fromkeys((0, packed))), "split_kv": split}
        return {**kept, "softmax": (_softmax(problem),)}

    def measured(self, problem: Problem) -> tuple[Mapping[str, Value], ...]:
        """Say what took fewest cycles, of two consumers and of three (``docs/attention.md``).

        It was counted where queries fill blocks, for inputs of 16 bits and up to d 128.
        """
        sizes = problem.sizes
        if _narrow(problem.operation) or sizes["d"] > 2 * _BLOCK or sizes["m"] < _BLOCK:
            return ()
        masked = problem.operation.mask is not None
        found: dict[str, Value] = {
            "tile_n": 128, "consumer_order": "SVsMvELOP", "turns": "none", "persistent": 1,
            "order": "zigzag" if masked else "straight", "epilogue": "tma",
        }  # fmt: skip
        alone: dict[str, Value] = {"cluster_m": 1}
        rings: dict[str, Value] = {"stages_k": 2, "stages_v": 2}
        two = found | rings | {
            "consumers": 2, "queries": "registers", "softmax": _softmax(problem),
        }  # fmt: skip
        three = found | rings | {"consumers": 3, "stages_v": 4} | alone
        return (two | alone if masked else two), three

    @property
    def rows(self) -> int:
        """Queries of a CTA."""
        return _BLOCK * self.consumers

    @property
    def span(self) -> int:
        """Queries of a tile: of all CTAs of a cluster, or those of its heads."""
        return self.pack_gqa or self.rows * self.cluster_m

    def forward(self, k: Kernel) -> None:
        """Let a producer fill the rings; let consumers multiply twice a block, and store."""
        rings, few = self.rings(k), self.consumers == 3
        copies = self.consumers if self.turns == "none" else 2
        with k.role("producer", warps=4, registers=select(few, 32, 24)):
            with k.elect():
                for tile in self.tiles(k):
                    self.produce(k, tile, *rings)
            k.sync("cluster")
        with k.role("consumer", warpgroups=1, registers=select(few, 160, 240), w=copies):
            self.consume(k, *rings)
            if self.split_kv == 1:  # else that of the parts was the last
                k.sync("cluster")

    def produce(
        self, k: Kernel, tile: Tile, ring_q: BlockRing, ring_k: BlockRing, ring_v: BlockRing
    ) -> None:
        """Load what a tile has; what comes before the loop is a step ahead in it."""
        q, keys, values = k.inputs[:3]
        before, loop = self.producer_order[:-2], self.producer_order[-2:]

        def load(letter: str, number: LoopIndex) -> None:
            back = number.last - number
            if letter == "V":
                ring_v.fill(number, values[back], self.whole)
                return
            halves = k.unrolled("two", 2) if _narrow(k.op) else (None,)
            ring_k.fill(number, keys[back], self.keys_at(k), halves)

        for letter in before:
            if letter == "Q":
                packed = self.pack_gqa > 1
                each = k.unrolled("head", _BLOCK // self.pack_gqa) if packed else (None,)
                ring_q.fill(tile, q, self.whole, each)
                continue
            with nullcontext() if k.op.mask is None else k.when(tile.trips >= 1):
                for step in self.steps(k, tile, first=1):
                    load(letter, step)
        for step in self.steps(k, tile):
            for letter in loop:
                ahead = letter in before
                with k.when(step + 1 < step.count) if ahead else nullcontext():
                    load(letter, step + ahead)

    def rings(self, k: Kernel) -> tuple[BlockRing, BlockRing, BlockRing]:
        """Say how the kernel is launched and cut up; return the rings of queries, keys, values."""
        snake = self.order == "snake"
        k.launch(
            persistent=self.persistent, early=self.early, raster=self.raster, snake=snake,
            zigzag=self.order == "zigzag",
        )  # fmt: skip
        heads = "bl", *(("bg", "bh") if self.together == "kv heads" else ("bh", "bg"))
        k.grid(*(("bm", *heads) if snake else (*heads, "bm")))
        if self.order != "straight":
            k.walk_down("bm")
        k.cluster(rank=self.cluster_m)
        if self.split_kv > 1:
            k.cluster(rank_n=self.split_kv)
        k.tile(tm=self.rows, tn=self.tile_n, td=self.depth, te=self.depth)
        if self.pack_gqa > 1:
            k.tile(line=self.pack_gqa)
        if narrow := _narrow(k.op):
            k.tile(four=self.tile_n // 4, next=2)
        lies, slab = ("te", "tn") if narrow else ("tn", "te"), 128
        if narrow:  # a line has keys
            slab = select(self.tile_n % 128 == 0, 128, select(self.tile_n % 64 == 0, 64, 32))
        several = self.consumers * self.cluster_m
        to = "cluster" if self.split_kv == 1 else "rank"
        return (
            BlockRing(k, "q", "tm", "td", self.stages_q, self.consumers, to),
            BlockRing(k, "k", "tn", "td", self.stages_k, several, to),
            BlockRing(k, "v", *lies, self.stages_v, several, to, slab),
        )

    def consume(self, k: Kernel, ring_q: BlockRing, ring_k: BlockRing, ring_v: BlockRing) -> None:
        """Multiply with keys, exponentiate, multiply with values; divide by the sum, and store."""
        consumer, orders = Consumer(self, k, ring_k, ring_v), consumer_orders()
        order = self.consumer_order
        rows, queries, turns = consumer.rows, consumer.queries, consumer.turns
        store = RowStore(self, k)
        if turns:
            turns.begin()
        for tile in self.tiles(k):
            rows.begin()
            ring_q.wait(tile)
            if queries:
                k.ldmatrix(queries, ring_q.tile[tile][f"{_ROWS}, td = (far near quad word)"])
                k.fence("proxy.async")  # or the next tile's load may come before they are read
                k.sync("role")
                ring_q.release(tile)
            parts = consumer.parts(ring_q.tile[tile])
            for step in self.steps(k, tile):
                orders.step(k, parts, order, step, consumer.issued(step))
            if not queries:
                k.sync("role")
                ring_q.release(tile)
            any_step = None if k.op.mask is None else tile.trips >= 1
            orders.rest(k, parts, order, step.last, any_step)
            rows.end()
            store.rows(rows.acc)
        store.end()


class Consumer:
    """What a consumer holds, and the parts of a step of its loop.

    S scores, the product of its queries and a block of keys; M their maxima, E their exponentials,
    L the sums of these, O the sums so far shrunk, P the weights rounded, V their product with the
    values.  Small letters are waits for a product, behind which its stage is released.
    """

    def __init__(self, machine: Attention, k: Kernel, keys: BlockRing, values: BlockRing) -> None:
        self.machine, self.k, self.keys, self.values = machine, k, keys, values
        dtype, wide, narrow = k.inputs[0].dtype, 64, _narrow(k.op)
        k.threads(warp=4, octet=8, quad=4)
        k.tile(high=_BLOCK, col=wide)
        held = machine.queries == "registers"
        spans = {"span": machine.tile_n // _SLAB} if machine.weights == "shared" else {}
        columns = 16 if narrow else 8
        k.values(**spans, group=_SLAB // 8 if spans else machine.tile_n // columns)
        if held:
            k.values(deep=machine.depth // columns)
            k.split("deep", "far", near=_SLAB // 8)  # of a slab, of whatever type
        slices = {} if machine.split_kv == 1 else {"peer": machine.split_kv}
        k.values(chunk=machine.depth // wide, **slices, wide=wide // 8 // machine.split_kv)
        duo = {"duo": 2} if narrow else {}
        k.values(half=2, **duo, pair=2, both=2, word=4 if narrow else 2)
        self.scores = k.registers("scores", "f32", *spans, "group", "half", *duo, "pair")
        self.weights = RoundedWeights(k, machine.weights, machine.keys_of(k), machine.out_by)
        self.queries = k.registers("queries", dtype, "deep", "half", "word") if held else None
        acc = k.registers("acc", "f32", "chunk", *slices, "wide", "half", "both")
        at = f"{machine.heads_by}, {machine.tile_by}, {_ROWS}"
        shares = KeyShares(k, machine.split_kv) if slices else None
        by = next(iter({**spans, **duo}), "")
        by_rows = machine.softmax == "by rows"
        self.rows = RowStatistics(k, self.scores, acc, at, by=by, shares=shares, by_rows=by_rows)
        self.turns = None if machine.turns == "none" else ProductTurns(k, machine.turns)

    def parts(self, queries: Piece) -> dict[str, LoopPart]:
        """Return the parts of a step in the order without overlap; ``queries`` in shared memory."""
        rows, weights = self.rows, self.weights

        def multiply(step: LoopIndex) -> None:
            self.keys.wait(step)
            if self.turns:
                self.turns.take(step)
            first = self.queries or queries[_ROWS]
            by = _COLUMNS_OF_8_BITS if _narrow(self.k.op) else self.machine.keys_by
            by = f"{by}, {_OF_QUERIES}" if self.queries else by
            self.k.wgmma(self.scores, first, self.keys.tile[step][by], fresh=True)

        def maximise(step: LoopIndex) -> None:
            self.machine.mask(self.k, self.scores, step)
            rows.maximise()

        def add_values(step: LoopIndex) -> None:
            self.values.wait(step)
            weights.multiply(rows.acc, self.values, step)

        return {
            "S": LoopPart(multiply, self.keys.release),
            "M": LoopPart(maximise),
            "E": LoopPart(lambda _: rows.exponentiate()),
            "L": LoopPart(lambda _: rows.add_up()),
            "O": LoopPart(lambda _: rows.rescale()),
            "P": LoopPart(lambda step: weights.round(self.scores, step)),
            "V": LoopPart(add_values, self.values.release),
        }

    def issued(self, step: LoopIndex) -> Callable[[], None] | None:
        """Return what follows the products with which a step begins: the other's turn."""
        turns = self.turns
        return (lambda: turns.give(step)) if turns else None


def _softmax(problem: Problem) -> str:
    """Return which way of the softmax measured faster: by rows where a row's sums are long."""
    long = problem.sizes["d"] > _BLOCK
    return "by rows" if long and not _narrow(problem.operation) else "at once"


def _narrow(operation: Operation) -> bool:
    """Whether an operation's inputs have 8 bits."""
    return DTYPES[operation.inputs[0].dtype].bytes == 1


def consumer_orders() -> Orders:
    """Return the orders of a consumer's step, which all machines of this kind have."""
    return _orders_of_fa2()


@cache
def _orders_of_fa2() -> Orders:
    return orders_in(Attention().chosen(Chosen(_FA2)), attention("bf16"))


def orders_in(machine: Attention, operation: Operation) -> Orders:
    """Return the orders of a consumer's step, from what its parts read and write there."""
    k = Kernel(machine.name, operation)
    ring_q, ring_k, ring_v = machine.rings(k)
    with k.role("consumer", warpgroups=1, w=machine.consumers):
        consumer = Consumer(machine, k, ring_k, ring_v)
        for tile in machine.tiles(k):
            parts = consumer.parts(ring_q.tile[tile])
            for step in machine.steps(k, tile):
                found = orders_of(k, parts, step)
    return found


class BlockRing:
    """A ring of tiles in shared memory and its barriers.

    Tiles of keys are shared: each of the CTAs ``to`` loads a part of the lines for all of them.
    """

    def __init__(
        self, k: Kernel, name: str, lines: str, wide: str, stages: int, releases: int, to: str,
        slab_bytes: int = 128,
    ) -> None:  # fmt: skip
        self.k, self.stages = k, stages
        self.share, self.to = ("", "cta") if lines == "tm" else (f"{lines} by rank", to)
        dtype = k.inputs[0].dtype
        self.tile = k.smem(
            f"smem_{name}", dtype, lines, wide, stages=stages, swizzle=128, slab_bytes=slab_bytes
        )
        self.full = k.mbarriers(f"{name}_full", stages, arrivals=1)
        self.empty = k.mbarriers(f"{name}_empty", stages, arrivals=releases)

    def fill(
        self, number: LoopIndex, of: Array | Piece, at: str, turns: Iterable[object] = (None,)
    ) -> None:
        """Load a tile once its stage is free, a part in each turn of a loop."""
        k, full = self.k, self.full[number]
        k.wait(self.empty[number - self.stages])
        k.arrive(full, expect=self.tile.stage_bytes)
        for _ in turns:
            k.tma(self.tile[number], of[at], signal=full, share=self.share, trim=False)

    def wait(self, number: LoopIndex) -> None:
        """Wait for a tile."""
        self.k.wait(self.full[number])

    def release(self, number: LoopIndex) -> None:
        """Say that this copy has read a tile, in all CTAs that have loaded it."""
        with self.k.elect():
            self.k.arrive(self.empty[number], to=self.to)


class ProductTurns:
    """Two consumers that multiply in turn: one's products run under the other's exponentials.

    Turn ``2 step + w`` is over when the other copy may multiply.  Of named barriers all threads of
    a copy arrive at the other's, of mbarriers one of them at its own turn's.
    """

    def __init__(self, k: Kernel, how: str) -> None:
        self.k, self.copy, self.named = k, k.copy("w"), how == "named"
        if self.named:
            self.turn = k.named_barriers("turn", 2, threads=256, number=3)
        else:
            self.turn = k.mbarriers("turn", 4, arrivals=1)

    def begin(self) -> None:
        """Let the last copy give the first one its first turn; mbarriers begin with it."""
        if self.named:
            with self.k.when(self.copy >= 1):
                self.k.arrive(self.turn[self.copy - 1])

    def take(self, step: LoopIndex) -> None:
        """Wait for this copy's turn."""
        self.k.wait(self.turn[step, self.copy - (not self.named)])

    def give(self, step: LoopIndex) -> None:
        """Give the turn to the next copy."""
        with nullcontext() if self.named else self.k.elect():
            self.k.arrive(self.turn[step, self.copy + self.named])


class RoundedWeights:
    """A block's rounded weights, in registers or in shared memory: 64 keys of them at a time."""

    def __init__(self, k: Kernel, where: str, keys_by: str, out_by: str) -> None:
        self.k, self.dtype, self.keys_by, self.out_by = k, k.inputs[0].dtype, keys_by, out_by
        if where == "registers":
            duo = ("duo",) if _narrow(k.op) else ()
            self.held = k.registers("weights", self.dtype, "group", "half", *duo, "pair")
        else:
            self.tile = k.smem("smem_p", self.dtype, "high", "tn", stages=1, swizzle=128)
        self.where = where

    def round(self, scores: Held, step: LoopIndex) -> None:
        """Round weights; in shared memory the next product may read them."""
        k = self.k
        if self.where == "registers":
            k.cast(scores, self.dtype, into=self.held)
            return
        for _ in k.each("span"):
            k.stmatrix(self.tile[step][f"{_OWN_ROWS}, {_SLAB_KEYS}"], k.cast(scores, self.dtype))
        k.fence("proxy.async")
        k.sync("role")

    def multiply(self, acc: Held, ring: BlockRing, step: LoopIndex) -> None:
        """Add a step's weights times its block of values."""
        values = ring.tile[step]
        if self.where == "registers":
            self.k.wgmma(acc, self.held, values[f"{self.keys_by}, {self.out_by}"], fresh=False)
        else:
            self.k.wgmma(acc, self.tile[step][_OWN_ROWS], values[self.out_by], fresh=False)


class RowStatistics:
    """The statistics of a consumer's rows: the maximum so far, and the sum of weights below it.

    Rows lie ``at`` a pattern.  Weights are made ``by`` one value of a digit after another, so that
    few registers lie between.  With ``shares`` CTAs of a cluster have a part of the keys each.
    """

    def __init__(
        self, k: Kernel, scores: Held, acc: Held, at: str, *, by: str = "",
        shares: KeyShares | None = None, by_rows: bool = False,
    ) -> None:  # fmt: skip
        self.k, self.scores, self.acc, self.by = k, scores, acc, by
        self.at, self.shares, self.by_rows = at, shares, by_rows
        rows = [digit for digit in acc.digits if digit in scores.digits]
        self.top, self.new, self.total = (
            k.registers(name, "f32", *rows) for name in ("top", "new", "total")
        )
        self.row = rows[-1]
        self.apart = k.registers("apart", "f32", *rows, "pair")  # so that four maxima run at once
        self.shift, self.shrink = (k.registers(name, "f32", *rows) for name in ("shift", "shrink"))
        scale = value("scale") * _LOG2_E if k.op.scalars else Constant(_LOG2_E)
        self.scale, self.factor = scale, k.registers("factor", "f32")
        self.scaled, self.narrow = len(k.inputs) > 3, _narrow(k.op)
        self.power = apply("ex2.ftz", value("x") * value("factor") + value("shift"))

    def begin(self) -> None:
        """Begin with no key."""
        k = self.k
        if self.scaled:
            of = {array.name: k.load(array["l = bl, h = bh"]) for array in k.inputs[3:5]}
            size_q, size_k = (apply("abs", value(name)) for name in of)
            k.set(self.factor, self.scale * size_q * size_k, of)
        else:
            k.set(self.factor, self.scale)
        k.fill(self.top, _LEAST)
        for held in (self.total, self.acc, *((self.shift, self.shrink) if self.by_rows else ())):
            k.fill(held, 0.0)

    def maximise(self) -> None:
        """Find the new maxima, and by what their weights shrink; by rows beside weights."""
        k = self.k
        k.set(self.apart, value("top"), {"top": self.top})
        if self.by_rows:
            k.set(self.new, value("top"), {"top": self.top})
            for row in k.each(self.row):
                k.reduce("max", self.apart, self.scores)
                self._join()
                with k.when(row < 1):
                    self._weigh()
            return
        k.reduce("max", self.apart, self.scores)
        k.set(self.new, value("top"), {"top": self.top})
        self._join()

    def _join(self) -> None:
        """Find maxima of those of its parts, in all threads that have a row."""
        k, known = self.k, {"factor": self.factor, "shift": self.shift}
        k.reduce("max", self.new, self.apart)
        k.butterfly("max", self.new, over="quad")
        k.set(self.shift, -(value("new") * value("factor")), {"new": self.new, **known})
        k.set(self.shrink, self.power, {"x": self.top, **known})
        if self.narrow:
            k.set(self.shift, value("x") + _HEADROOM, {"x": self.shift})

    def exponentiate(self) -> None:
        """Make weights of scores, by rows of those of the last row."""
        if not self.by_rows:
            self._weigh()
            return
        for row in self.k.each(self.row):
            with self.k.when(row >= 1):
                self._weigh()

    def _weigh(self) -> None:
        """Make weights of scores, below the new maximum."""
        k, known, power = self.k, {"factor": self.factor, "shift": self.shift}, self.power
        for _ in k.each(self.by) if self.by else (None,):
            k.set(self.scores, power, {"x": self.scores, **known})

    def add_up(self) -> None:
        """Add the weights to the sum of the earlier ones, below the new maximum."""
        k = self.k
        k.set(self.top, value("new"), {"new": self.new})
        k.set(self.total, value("x") * value("by"), {"x": self.total, "by": self.shrink})
        k.add(self.total, self.scores)

    def rescale(self) -> None:
        """Shrink the sums to the new maximum."""
        self.k.set(self.acc, value("x") * value("by"), {"x": self.acc, "by": self.shrink})

    def end(self) -> None:
        """Divide the sums by the weights' sum; rows that saw no key are 0."""
        k = self.k
        k.butterfly("add", self.total, over="quad")
        if self.shares:
            self.shares.add_up(self)
        if k.op.further:
            self.store_logarithm()
        k.set(self.total, apply("rcp0", value("x")), {"x": self.total})
        if self.scaled:
            of = {"x": self.total, "scale_v": k.load(k.inputs[5]["l = bl, h = bh"])}
            k.set(self.total, value("x") * value("scale_v"), of)
        k.set(self.acc, value("x") * value("by"), {"x": self.acc, "by": self.total})

    def store_logarithm(self) -> None:
        """Store ln of the sum of exp(scale s): by one thread of the quad that has the sum."""
        k, lse = self.k, self.k.outputs[1]
        total: Expression = value("total")
        if self.narrow:
            total = total * apply("ex2.ftz", Constant(-_HEADROOM))
        power = value("top") * value("factor") + apply("lg2", total)
        known = {"top": self.top, "factor": self.factor, "total": self.total}
        k.set(self.new, power * math.log(2), known)
        with k.only(rank_n=0) if self.shares else nullcontext(), k.only(quad=0):
            k.store(lse[self.at], self.new)


class KeyShares:
    """The parts of keys that CTAs of a cluster have: each adds up its slice of the sums of all.

    A part's sums and weights are below its own maximum; they shrink to that of all parts.
    """

    def __init__(self, k: Kernel, ctas: int) -> None:
        self.k = k
        k.values(part=ctas)

    def add_up(self, rows: RowStatistics) -> None:
        """Set a row's statistics to those over all keys, and its sums to this CTA's slice."""
        k, x, by = self.k, value("x"), value("by")
        row, column = rows.acc.digits[-2:]
        sent_top, sent_total = (
            k.send(held, over="rank_n", vector=row) for held in (rows.top, rows.total)
        )
        sent = k.send(rows.acc, over="rank_n", slices="peer", vector=f"{row} {column}")
        tops, totals, shrink = (
            k.registers(name, "f32", "part", row) for name in ("tops", "totals", "shrinks")
        )
        piece = k.registers("piece", "f32", row, column)
        sums = k.registers("sums", "f32", *(d for d in rows.acc.digits if d != "peer"))
        k.sync("cluster")
        for part in k.each("part"):
            sent_top.take(part, tops)
            sent_total.take(part, totals)
        k.fill(rows.top, _LEAST)
        k.reduce("max", rows.top, tops)
        k.set(rows.shift, -(x * value("factor")), {"x": rows.top, "factor": rows.factor})
        k.set(shrink, rows.power, {"x": tops, "factor": rows.factor, "shift": rows.shift})
        k.fill(rows.total, 0.0)
        k.reduce("add", rows.total, x * by, {"x": totals, "by": shrink})
        k.fill(sums, 0.0)
        for _ in sent.pieces():
            for part in k.each("part"):
                sent.take(part, piece)
                k.reduce("add", sums, x * by, {"x": piece, "by": shrink})
        rows.acc = sums


class RowStore:
    """How a consumer stores its rows: from registers, or by chunks through shared memory."""

    def __init__(self, machine: Attention, k: Kernel) -> None:
        self.k, self.tma, self.machine = k, machine.epilogue == "tma", machine
        if self.tma:
            self.out = k.smem("smem_o", k.output.dtype, "high", "col", stages=2, swizzle="line")

    def rows(self, acc: Held) -> None:
        """Round and store."""
        k, o = self.k, self.k.output
        machine = self.machine
        at = f"{machine.heads_by}, {machine.tile_by}, e = te"
        if not self.tma:
            columns = machine.out_by.replace("peer", "rank_n")
            k.store(o[f"{at}, {_ROWS}, {columns}"], acc)
            return
        for chunk in k.each("chunk"):
            with k.elect():  # until the chunk's place is free
                k.wait_group("bulk", 1, read=True)
            k.sync("role")
            part = f"{_OWN_ROWS}, col = (wide quad both)"
            k.stmatrix(self.out[chunk][part], k.cast(acc, o.dtype))
            k.fence("proxy.async")
            k.sync("role")
            with k.elect():
                k.tma_store(o[f"{at}, tm = (w high), te = (chunk col)"], self.out[chunk])
                k.commit("bulk")

    def end(self) -> None:
        """Wait until the last chunks are read."""
        if self.tma:
            with self.k.elect():
                self.k.wait_group("bulk", 0, read=True)


_FA2: Mapping[str, Value] = {
    "depth": 128, "consumers": 2, "tile_n": 128, "stages_k": 2, "stages_v": 2, "stages_q": 1,
    "consumer_order": "SsMELOPVv", "producer_order": "QKV", "turns": "none",
    "queries": "shared", "weights": "registers", "softmax": "at once", "epilogue": "direct",
    "persistent": 1, "order": "straight", "together": "kv heads", "raster": 1, "early": 0,
    "cluster_m": 1, "split_kv": 1, "pack_gqa": 0,
}  # fmt: skip
_SKEWED = {**_FA2, "consumer_order": "SVsMELvOP"}
_FA3 = {**_SKEWED, "turns": "named"}
_LINES = {**_SKEWED, "epilogue": "tma"}
_AHEAD = {**_LINES, "stages_q": 2}
_LONGEST = {**_LINES, "order": "longest", "raster": 16}
_SNAKE = {**_LINES, "order": "snake"}
_PAIR = {**_LONGEST, "cluster_m": 2}
_WIDE = {**_SKEWED, "tile_n": 176}
_ONE = {**_WIDE, "persistent": 0, "order": "longest", "raster": 8}
_DEEP = {**_SKEWED, "depth": 256, "tile_n": 64}
_MBARRIERS = {**_FA3, "turns": "mbarrier"}
_HELD = {**_LINES, "queries": "registers"}
_HELD_LONGEST = {**_LONGEST, "queries": "registers"}
_HELD_SNAKE = {**_SNAKE, "queries": "registers"}
_HELD_PAIR = {**_HELD, "cluster_m": 2}
_COMPILED = {**_FA3, "consumer_order": "SVsMvELOP"}
_EARLY = {**_LONGEST, "consumer_order": "SOVsMvELP"}
_EARLY_HELD = {**_EARLY, "queries": "registers"}
_ZIGZAG = {**_EARLY_HELD, "order": "zigzag", "raster": 4}
_BY_ROWS = {**_ZIGZAG, "consumer_order": "SVsMvELOP", "softmax": "by rows"}
_ONE_HELD = {**_EARLY_HELD, "persistent": 0, "raster": 4}
_EARLY_PAIR = {**_EARLY, "cluster_m": 2}
_DECODE = {
    **_SKEWED, "consumers": 1, "stages_k": 3, "stages_v": 2, "persistent": 0, "split_kv": 2,
    "pack_gqa": 1, "consumer_order": "SVsMvELOP",
}  # fmt: skip
_DRAFT = {**_DECODE, "pack_gqa": 8}
_MEMORY = {**_SKEWED, "depth": 64, "consumers": 3, "tile_n": 192, "weights": "shared"}

STARTS: Mapping[str, Mapping[str, Value]] = {
    "fa2": _FA2,
    "fa3 without turns": _SKEWED,
    "fa3": _FA3,
    "tma store": _LINES,
    "queries ahead": _AHEAD,
    "longest first": _LONGEST,
    "snake": _SNAKE,
    "pair multicast": _PAIR,
    "wide": _WIDE,
    "one tile each": _ONE,
    "256 dimensions": _DEEP,
    "fa3 by mbarriers": _MBARRIERS,
    "queries in registers": _HELD,
    "queries in registers, longest first": _HELD_LONGEST,
    "queries in registers, snake": _HELD_SNAKE,
    "queries in registers, pair multicast": _HELD_PAIR,
    "fa3 as compiled": _COMPILED,
    "early": _EARLY,
    "early, queries in registers": _EARLY_HELD,
    "early, pair multicast": _EARLY_PAIR,
    "zigzag": _ZIGZAG,
    "zigzag, by rows": _BY_ROWS,
    "one tile each, queries in registers": _ONE_HELD,
    "weights through memory": _MEMORY,
    "decode": _DECODE,
    "decode, 8 queries": _DRAFT,
}
"""Named points: FlashAttention-2's order, FlashAttention-3's, and steps beyond."""
