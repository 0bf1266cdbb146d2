"""Mask cover: z3's answers against pairs counted one by one, and terms that are wrong."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tinygpu.legality import mask_cover as module
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.mask_cover import Cover, Hide, Reading, Weighted, decide, mask_cover
from tinygpu.machines.attention import STARTS, Attention
from tinygpu.machines.hopper import STARTS as PRODUCTS
from tinygpu.machines.hopper import Hopper
from tinygpu.meaning import identity
from tinygpu.meaning.identity import Meaning, computes, summary
from tinygpu.term.access_map import Access, Affine, Immediate, Predicate, var
from tinygpu.term.expression import Apply, Constant, Expression, Index, parse, value
from tinygpu.term.machine import Chosen, Value
from tinygpu.term.operation import attention, matmul
from tinygpu.term.program import Do, Elect, For, ForTile, Program, Statement, When, changed, walk

FIRST = {"stages_k": 1, "stages_v": 1, "stages_q": 1}


@cache
def term(mask: str = "causal", start: str = "fa2", **others: Value) -> Program:
    chosen = Chosen({**STARTS[start], **others})
    return Attention().program(attention("bf16", mask=mask), chosen)


# Pairs, counted one by one


def by_digits(do: Do, access: Access, steps: Any, threads: Any) -> NDArray[np.int64]:
    """Return sum of step * digit for each (thread, register), where an access writes it."""
    shape = tuple(map(int, access.buffer.shape))
    found = np.zeros((*do.threads, *shape), dtype=np.int64)
    for value_at in np.ndindex(*do.values):
        at = tuple(
            sum(v * to[d] for v, to in zip(value_at, access.value, strict=True))
            for d in range(len(shape))
        )
        moved = sum(v * s for v, s in zip(value_at, steps, strict=True))
        found[(..., *at)] = moved
    for i, step in enumerate(threads):
        digit = np.arange(do.threads[i]).reshape((-1, *(1,) * (found.ndim - 1 - i)))
        found = found + step * digit
    return found


def each_do(program: Program, unit: str, writes: str) -> tuple[Do, Any]:
    (found,) = [
        (s, around)
        for s, around in walk(program)
        if isinstance(s, Do) and s.instruction.unit == unit and s.write.buffer.name == writes
    ]
    return found


def counted(program: Program, m: int, n: int) -> dict[tuple[int, int], int]:
    """Return how often a term sums each pair of a row that exists and a key, if at all."""
    sizes = {"l": 1, "h": 1, "g": 1, "m": m, "n": n, "d": 64, "e": 64}
    known: dict[str, Any] = dict(program.parameter_values(sizes))
    product, _ = each_do(program, "tensor", "scores")
    rows, keys = product.reads[:2]
    assert isinstance(rows, Access)
    assert isinstance(keys, Access)
    row = by_digits(product, product.write, [s[0] for s in rows.value], [t[0] for t in rows.thread])
    key = by_digits(product, product.write, [s[0] for s in keys.value], [t[0] for t in keys.thread])
    of_rows, _ = each_do(program, "tma", "smem_q")
    of_keys, around_keys = each_do(program, "tma", "smem_k")
    turn = next(b.var for b in around_keys if isinstance(b, For))
    (trips,) = {b.trips for b in around_keys if isinstance(b, For)}
    masks = []
    for s, around in walk(program):
        if isinstance(s, Do) and s.where is not None:
            (own,) = (b.var for b in around if isinstance(b, For))
            at = by_digits(s, s.write, s.where.value, s.where.thread)
            masks.append((s.where, at, own, [b for b in around if isinstance(b, When)]))
    bm = next(axis for axis in program.grid if axis.var == "bm")
    found: dict[tuple[int, int], int] = {}
    for tile in range(bm.extent.evaluate(known)):
        here: dict[str, Any] = {**known, "bm": tile}
        for name, expression in program.tile_values.items():
            here[name] = expression.evaluate(here)
        copies, (_, ctas) = range(program.roles[0].copies), program.cluster[0]
        for w, rank in itertools.product(copies, range(ctas)):
            for t in range(here[str(trips)]):
                now = {**here, "w": w, "rank": rank, turn: t, "slab": 0, "slice": 0, "block": 0}
                left = np.ones(row.shape, dtype=bool)
                for where, at, own, guards in masks:
                    inside = {**now, own: t}
                    ends = [here[b.bound] if isinstance(b.bound, str) else b.bound for b in guards]
                    if all(b.index.evaluate(inside) < e for b, e in zip(guards, ends, strict=True)):
                        hidden = at + where.origin.evaluate(inside) < where.bound.evaluate(inside)
                        left &= ~np.broadcast_to(hidden, left.shape)
                q, k = of_rows.reads[0], of_keys.reads[0]
                assert isinstance(q, Access)
                assert isinstance(k, Access)
                first = q.origin[3].evaluate(now) + rows.origin[0].evaluate(now)
                block = k.origin[2].evaluate({**now, "rank": 0})  # the first CTA's part begins it
                pairs = np.stack([(row + first)[left], (key + block)[left]], -1)
                for r, c in pairs[pairs[:, 0] < m].tolist():
                    found[r, c] = found.get((r, c), 0) + 1
    return found


def visible(program: Program, m: int, n: int) -> dict[tuple[int, int], int]:
    mask = program.operation.mask or parse("0 <= 0")
    i, j = np.mgrid[:m, :n]
    shown = mask.evaluate({"index(m)": i, "index(n)": j, "m": m, "n": n})
    return (
        dict.fromkeys(zip(i[shown].tolist(), j[shown].tolist(), strict=True), 1)
        if (program.operation.mask)
        else {(r, c): 1 for r in range(m) for c in range(n)}
    )


def confirmed(program: Program, found: Cover) -> bool:
    """Whether the pair of a counterexample is summed, and is not visible, or the other way."""
    m, n = found.at["m"], found.at["n"]
    assert max(m, n) <= 1024, found
    pair = found.at["row"], found.at["key"]
    return counted(program, m, n).get(pair, 0) != visible(program, m, n).get(pair, 0)


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_pairs_are_counted_right(mask: str, cluster: int) -> None:
    program = term(mask, "fa2", consumers=2, tile_n=80, cluster_m=cluster)
    for m, n in ((1, 1), (130, 90), (70, 200), (200, 33)):
        assert counted(program, m, n) == visible(program, m, n)


# The machine's terms


@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("start", STARTS)
def test_named_points_are_proved(mask: str, start: str) -> None:
    program = term(mask, start)
    begun = time.perf_counter()
    found = mask_cover.__wrapped__(program)
    assert found, found
    packed = STARTS[start]["pack_gqa"]
    axes = "m, n" if not packed else "g, n" if (packed, mask) == (1, "none") else "g, m, n"
    assert str(found) == f"mask cover proved for every {axes}"
    assert time.perf_counter() - begun < 1


@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("order", ["SsMELOPVv", "SVsMELvOP"])
@pytest.mark.parametrize("tile_n", [64, 80, 112, 176])
@pytest.mark.parametrize("consumers", [1, 2, 3])
def test_other_blocks_are_proved(mask: str, order: str, tile_n: int, consumers: int) -> None:
    program = term(mask, consumers=consumers, tile_n=tile_n, consumer_order=order, **FIRST)
    begun = time.perf_counter()
    assert mask_cover(program)
    assert time.perf_counter() - begun < 1


# Mutants


def mutated(program: Program, change: Callable[[Statement], Statement]) -> Program:
    roles = tuple(replace(role, body=changed(role.body, change)) for role in program.roles)
    return replace(program, roles=roles)


def value_of_tiles(program: Program, change: Callable[[Expression], Expression]) -> Program:
    def of(s: Statement) -> Statement:
        if not isinstance(s, ForTile):
            return s
        return replace(s, values=tuple((name, change(e)) for name, e in s.values))

    return mutated(program, of)


def predicate(change: Callable[[Predicate], Predicate | None]) -> Callable[[Program], Program]:
    def of(s: Statement) -> Statement:
        if isinstance(s, Do) and s.where is not None:
            return replace(s, where=change(s.where))
        return s

    return lambda program: mutated(program, of)


def is_guard(s: Statement) -> bool:
    return isinstance(s, When) and any(isinstance(b, Do) and b.where for b in s.body)


def guard(index: Affine | None, bound: int | str) -> Callable[[Program], Program]:
    def of(s: Statement) -> Statement:
        if isinstance(s, When) and is_guard(s):
            return replace(s, index=s.index if index is None else index, bound=bound)
        return s

    return lambda program: mutated(program, of)


def origin(ring: str, form: Affine) -> Callable[[Program], Program]:
    """The origin along the keys of a load."""

    def of(s: Statement) -> Statement:
        if isinstance(s, Do) and s.write.buffer.name == ring and s.instruction.unit == "tma":
            (read,) = s.reads
            assert isinstance(read, Access)
            places = (*read.origin[:2], form, *read.origin[3:])
            return replace(s, reads=(replace(read, origin=places),))
        return s

    return lambda program: mutated(program, of)


def bodies(change: Callable[[tuple[Statement, ...]], tuple[Statement, ...]]) -> Any:
    """Change the body of the loop over turns of the role that multiplies."""

    def of(s: Statement) -> Statement:
        if isinstance(s, For) and any(is_guard(b) for b in s.body):
            return replace(s, body=change(s.body))
        return s

    return lambda program: mutated(program, of)


def moved(body: tuple[Statement, ...], by: int) -> tuple[Statement, ...]:
    """The guarded mask comes later, or earlier."""
    at = next(i for i, s in enumerate(body) if is_guard(s))
    rest = [*body[:at], *body[at + 1 :]]
    rest.insert(at + by, body[at])
    return tuple(rest)


def parameter(program: Program, expression: Expression) -> Program:
    own = [(n, expression if n == "trips" else e) for n, e in program.parameters]
    return replace(program, parameters=tuple(own))


def swapped(p: Predicate) -> Predicate:
    """Rows and keys exchanged: registers' and threads' steps in another order."""
    return replace(p, value=p.value[::-1], thread=p.thread[::-1])


def trips(text: str) -> Callable[[Program], Program]:
    return lambda program: value_of_tiles(program, lambda _: read(text))


def read(text: str) -> Expression:
    """A tile's trips, with / for ceildiv and whole numbers."""

    def of(e: Expression) -> Expression:
        match e:
            case Apply("div", (a, Constant(by))):
                return of(a).ceildiv(int(by))
            case Apply(operator, arguments):
                return Apply(operator, tuple(map(of, arguments)))
            case Constant(number):
                return Constant(int(number))
        return e

    return of(parse(text))


def number(by: int) -> Callable[[Program], Program]:
    return predicate(lambda p: replace(p, origin=p.origin + by))


def bound(form: Affine) -> Callable[[Program], Program]:
    return predicate(lambda p: replace(p, bound=form))


def is_load(s: Statement, ring: str) -> bool:
    return isinstance(s, Do) and s.write.buffer.name == ring and s.instruction.unit == "tma"


def operands(
    is_it: Callable[[Do], bool], change: Callable[[Access], Access], which: int
) -> Callable[[Program], Program]:
    """Change the read of a number, or the write (-1), of some statements."""

    def of(s: Statement) -> Statement:
        if not (isinstance(s, Do) and is_it(s)):
            return s
        if which < 0:
            return replace(s, write=change(s.write))
        reads = [change(r) if i == which and isinstance(r, Access) else r
                 for i, r in enumerate(s.reads)]  # fmt: skip
        return replace(s, reads=tuple(reads))

    return lambda program: mutated(program, of)


def makes_scores(do: Do) -> bool:
    return do.instruction.unit == "tensor" and do.write.buffer.name == "scores"


def guarded(is_it: Callable[[Statement], bool]) -> Callable[[Program], Program]:
    return lambda program: mutated(program, lambda s: When(KT, 9, (s,)) if is_it(s) else s)


def other_top(program: Program) -> Program:
    """Its maximum is of all scores, also of those that the mask does not show."""
    operation = program.operation
    own = [replace(r, expression=value("s")) if r.name == "top" else r
           for r in operation.reductions]  # fmt: skip
    return replace(program, operation=replace(operation, reductions=tuple(own)))


M, N = var("m"), var("n")
T, KT = var("trips"), var("kt")
# causal, fa2, 2 consumers of 64 rows, blocks of 128 keys: cut 2
WRONG: Mapping[str, Callable[[Program], Program]] = {
    "trips one less": trips("max(min(n, (bm + 1)*128 + (n - m)) - 128, 0) / 128"),
    "trips by whole blocks alone": trips("max(min(n, (bm + 1)*128 + (n - m)) - 1, 0) / 128"),
    "trips of the tile before": trips("max(min(n, bm*128 + (n - m)), 0) / 128"),
    "trips one more": trips("max(min(n, (bm + 1)*128 + (n - m)) + 128, 0) / 128"),
    "trips of all keys, not cut so far": trips("max(n, 0) / 128"),
    "trips without the shift": trips("max(min(n, (bm + 1)*128), 0) / 128"),
    "trips aligned at the top left": trips("max(min(n, (bm + 1)*128 + (m - n)), 0) / 128"),
    "trips: m for n": trips("max(min(m, (bm + 1)*128 + (n - m)), 0) / 128"),
    "trips: tn 64": trips("max(min(n, (bm + 1)*128 + (n - m)), 0) / 64"),
    "trips: tn 256": trips("max(min(n, (bm + 1)*128 + (n - m)), 0) / 256"),
    "trips: tm 64": trips("max(min(n, (bm + 1)*64 + (n - m)), 0) / 128"),
    "cut one less": guard(None, 1),
    "no cut": guard(None, 0),
    "a guard at the wrong end": guard(T + -1 * KT, 3),
    "predicate off by one key": number(1),
    "predicate off by one key, the other way": number(-1),
    "predicate of the tile's first rows": predicate(
        lambda p: replace(p, origin=Affine(p.origin.constant, p.origin.terms[:-1]))
    ),
    "predicate of another axis order": predicate(swapped),
    "predicate without threads": predicate(lambda p: replace(p, thread=())),
    "shift: m for n": bound(M + -1 * M),
    "shift the wrong way": bound(N + -1 * M),
    "no shift": bound(Affine()),
    "mask dropped": lambda program: mutated(
        program, lambda s: replace(s, body=()) if isinstance(s, When) and is_guard(s) else s
    ),
    "blocks of keys begin one early": origin("smem_k", 128 * T + -128 * KT + -129),
    "the first blocks for the last": origin("smem_k", 128 * KT),
    "values in another order": origin("smem_v", 128 * KT),
    "values of the block after": origin("smem_v", 128 * T + -128 * KT),
}
"""A counterexample is found, and it is one: pairs that are counted say so."""

UNREAD: Mapping[str, Callable[[Program], Program]] = {
    "mask after the maximum": bodies(lambda body: moved(body, 3)),
    "mask before the product": bodies(lambda body: moved(body, -5)),
    "mask at the end": bodies(lambda body: moved(body, 99)),
    "hidden to another number": lambda program: mutated(
        program,
        lambda s: replace(s, reads=(Immediate(-1e30),)) if isinstance(s, Do) and s.where else s,
    ),
    "blocks that overlap": origin("smem_k", 64 * T + -64 * KT + -64),
    "blocks that do not move": origin("smem_k", Affine()),
    "keys of the next turn": lambda program: mutated(
        program,
        lambda s: replace(s, reads=(s.reads[0], replace(s.reads[1], index=s.reads[1].index + 1),
                                    *s.reads[2:]))
        if isinstance(s, Do) and s.instruction.unit == "tensor" and s.write.buffer.name == "scores"
        and isinstance(s.reads[1], Access) else s,
    ),
    "a maximum in some turns": lambda program: mutated(
        program,
        lambda s: When(KT, 9, (s,)) if isinstance(s, Do) and s.variant == "max" else s,
    ),
    "two producers": lambda program: replace(
        program,
        roles=(program.roles[0], replace(program.roles[1], copies=2, copy="u")),
    ),
    "stages with another in front": lambda program: mutated(
        program,
        lambda s: replace(s, write=replace(s.write, index=2 * s.write.index))
        if is_load(s, "smem_q") and isinstance(s, Do) else s,
    ),
    "hidden by some threads": lambda program: mutated(
        program,
        lambda s: replace(s, lanes=(1, 2, 0)) if isinstance(s, Do) and s.where else s,
    ),
    "hidden by one thread": lambda program: mutated(
        program,
        lambda s: Elect((s,)) if isinstance(s, Do) and s.where else s,
    ),
    "weights hidden, too": lambda program: mutated(
        program,
        lambda s: replace(s, where=Predicate(var("w"), bound=Affine(1)))
        if isinstance(s, Do) and s.write.buffer.name == "total" and s.variant == "add" else s,
    ),
    "weights of some turns": lambda program: mutated(
        program,
        lambda s: When(KT, 9, (s,)) if isinstance(s, Do) and s.write.buffer.name == "weights"
        else s,
    ),
    "scores of a part of the keys": lambda program: mutated(
        program,
        lambda s: replace(s, reads=(s.reads[0], replace(s.reads[1], origin=(
            s.reads[1].origin[0] + 8, *s.reads[1].origin[1:])), *s.reads[2:]))
        if isinstance(s, Do) and s.write.buffer.name == "scores" and s.instruction.unit == "tensor"
        and isinstance(s.reads[1], Access) else s,
    ),
    "scores read after the loop": lambda program: mutated(
        program,
        lambda s: replace(s, body=(*s.body, *(
            b for one in s.body if isinstance(one, For) for b in one.body
            if isinstance(b, Do) and b.variant == "max"
            and "scores" in {a.buffer.name for a in b.accesses}
        ))) if isinstance(s, ForTile) else s,
    ),
    "a product in some turns": guarded(
        lambda s: isinstance(s, For) and any(
            isinstance(b, Do) and makes_scores(b) for a in s.body for c in a.body for b in c.body
        )
    ),
    "a maximum of hidden scores": other_top,
    "every second key": operands(
        lambda s: is_load(s, "smem_k"),
        lambda a: replace(a, value=tuple((b, c, 2 * n, d) for b, c, n, d in a.value)), 0,
    ),
    "columns with gaps": operands(
        makes_scores,
        lambda a: replace(a, value=tuple((2 * n if n == 8 else n, *d) for n, *d in a.value)), 1,
    ),
    "rows twice": operands(
        makes_scores,
        lambda a: replace(a, thread=tuple((n // 2 * 2, *d) for n, *d in a.thread)), 0,
    ),
    "registers hidden from the second on": operands(
        lambda s: s.where is not None,
        lambda a: replace(a, value=tuple((2 * x, *d) for x, *d in a.value)), -1,
    ),
    "other threads hide": lambda program: mutated(
        program,
        lambda s: replace(s, threads=(8, 4, 4)) if isinstance(s, Do) and s.where else s,
    ),
    "keys of another copy": operands(
        makes_scores, lambda a: replace(a, index=a.index + var("w")), 1
    ),
    "rows of the next tile": operands(makes_scores, lambda a: replace(a, index=a.index + 1), 0),
    "lines beyond the keys left out": operands(
        lambda s: is_load(s, "smem_k"), lambda a: replace(a, trimmed=True), 0
    ),
    "loads of other turns": lambda program: mutated(
        program,
        lambda s: replace(s, trips="m")
        if isinstance(s, For) and any(is_load(b, "smem_k") for b in s.body) else s,
    ),
    "a cluster": lambda program: replace(program, cluster=(("rank", 2),)),
    "weights made before the mask": bodies(lambda body: tuple(
        sorted(body, key=lambda s: not (isinstance(s, Do) and s.write.buffer.name == "weights"))
    )),
    "values weighed by one thread": lambda program: mutated(
        program,
        lambda s: Elect((s,)) if isinstance(s, Do) and s.write.buffer.name == "acc"
        and s.instruction.unit == "tensor" else s,
    ),
    "keys in every second stage": lambda program: operands(
        makes_scores, lambda a: replace(a, index=a.index + KT), 1
    )(operands(lambda s: is_load(s, "smem_k"), lambda a: replace(a, index=a.index + KT), -1)(
        program
    )),
    "trips of a product of sizes": trips("max(min(n*m, (bm + 1)*128 + (n - m)), 0) / 128"),
    "scores go on from turn to turn": lambda program: mutated(
        program,
        lambda s: replace(s, fresh=KT) if isinstance(s, Do) and s.fresh is not None else s,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_counterexample_is_one(name: str) -> None:
    program = WRONG[name](term("causal", "fa2"))
    assert program != term("causal", "fa2")
    found = mask_cover(program)
    assert found.outcome == "wrong", found
    assert not found
    if "row" in found.at:
        assert confirmed(program, found), found
    else:  # values: the origins of one turn differ
        forms = {
            s.write.buffer.name: s.reads[0].origin[2]
            for s, _ in walk(program)
            if isinstance(s, Do) and s.instruction.unit == "tma" and isinstance(s.reads[0], Access)
        }
        at = {"kt": found.at["turn"], "rank": 0, "trips": trips_at(program, found.at)}
        assert 0 <= at["kt"] < at["trips"]
        assert forms["smem_k"].evaluate(at) != forms["smem_v"].evaluate(at)


JUDGED: dict[str, Callable[[Program], Program]] = {
    "keys loaded in some turns": lambda program: mutated(
        program,
        lambda s: When(KT, 9, (s,)) if isinstance(s, Do) and s.write.buffer.name == "smem_k" else s,
    ),
    "keys loaded twice": lambda program: mutated(
        program,
        lambda s: (
            replace(s, body=tuple(b for b in s.body for _ in range(1 + is_load(b, "smem_k"))))
            if isinstance(s, For)
            else s
        ),
    ),
}
"""Blocks that are not there, or come twice: what is read is right where the judge says legal."""


@pytest.mark.parametrize("name", JUDGED)
def test_loads_that_are_too_few_or_too_many_are_the_judge_s(name: str) -> None:
    program = JUDGED[name](term("causal", "fa2"))
    assert program != term("causal", "fa2")
    assert mask_cover(program)
    assert verdict(program).outcome == "illegal"
    assert not computes(program)


def trips_at(program: Program, at: Mapping[str, int]) -> int:
    return int(program.tile_values["trips"].evaluate(at))


@pytest.mark.parametrize("name", UNREAD)
def test_what_is_not_recognised_is_unproved(name: str) -> None:
    program = UNREAD[name](term("causal", "fa2"))
    assert program != term("causal", "fa2")
    assert mask_cover(program).outcome == "unproved", mask_cover(program)


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        (lambda p: parameter(p, read("(n + 127) / 128")), "wrong"),
        (lambda p: parameter(p, read("max(n - 1, 1) / 128")), "wrong"),
        (number(1), "wrong"),
        (number(-1), "wrong"),
        (guard(None, 0), "wrong"),
        (guard(None, 2), "proved"),
        (lambda p: parameter(p, read("(n + 1) / 128")), "proved"),
    ],
)
def test_ends_of_the_keys_alone(change: Callable[[Program], Program], outcome: str) -> None:
    """A block more is allowed if it is masked."""
    program = change(term("none", "fa2"))
    found = mask_cover(program)
    assert found.outcome == outcome, found
    assert found or confirmed(program, found)


@pytest.mark.parametrize(
    "change",
    [
        guard(None, 3),
        guard(KT + -1 * T, 0),
        trips("max(min(n, (bm + 1)*128 + (n - m)) + 1, 0) / 128"),
        lambda p: guard(None, 3)(WRONG["trips one more"](p)),
        lambda p: value_of_tiles(p, lambda e: Apply("max", (e, Constant(0)))),
    ],
)
def test_more_masks_than_needed_are_proved(change: Callable[[Program], Program]) -> None:
    assert mask_cover(change(term("causal", "fa2")))


def test_values_meet_their_own_weights_once() -> None:
    """Skewed: the product after the loop is missing, doubled, or guarded otherwise."""
    program = term("causal", "fa3 without turns" if "fa3 without turns" in STARTS else "fa3")
    assert mask_cover(program)

    def last(change: Callable[[When], Any]) -> Cover:
        def of(s: Statement) -> Statement:
            return change(s) if isinstance(s, When) and s.bound == "trips" else s

        return mask_cover(mutated(program, of))

    assert last(lambda s: replace(s, body=s.body[:1])).outcome == "wrong"
    assert last(lambda s: replace(s, index=Affine(1))).outcome == "wrong"
    assert last(lambda s: replace(s, body=s.body * 2)).outcome == "wrong"


def test_others_are_unproved_with_a_reason() -> None:
    product = Hopper().program(matmul("bf16", layout="nt"), Chosen(next(iter(PRODUCTS.values()))))
    assert (
        str(mask_cover(product)) == "mask cover unproved: matmul reduces no scores along one axis"
    )
    program = term("causal", "fa2")
    other = replace(program, operation=attention("bf16", mask="window:5:0"))
    assert mask_cover(other).outcome == "wrong"
    none = replace(program, operation=attention("bf16"))
    assert mask_cover(none).outcome == "wrong"


def test_unknown_is_unproved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESOURCES", 1)
    found = mask_cover.__wrapped__(term("causal", "fa2"))
    assert found.outcome == "unproved"
    assert "z3 gives up" in str(found)


# What is said of a term


def test_computes_says_that_the_mask_is_covered() -> None:
    sizes = {"l": 1, "h": 1, "g": 1, "m": 1, "n": 1, "d": 8, "e": 8}
    found = Meaning(term("causal", "fa2"), (sizes,), None, "affine: trips: each tile's own")
    assert "each tile's own; mask cover proved for every m, n" in str(found)
    assert "(affine: trips: each tile's own), mask cover proved for every m, n" in summary([found])
    assert not found.proved
    product = Hopper().program(matmul("bf16", layout="nt"), Chosen(next(iter(PRODUCTS.values()))))
    assert Meaning(product, (), None).cover is None


def test_computes_runs_a_term_at_a_counterexample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys from 256 on are left out: no small size shows it."""
    far = trips("max(min(min(n, 200), (bm + 1)*64 + (n - m)), 0) / 64")
    program = far(term("causal", "fa2", consumers=1, tile_n=64, depth=64, **FIRST))
    least = {"l": 1, "h": 1, "g": 1, "m": 32, "n": 33, "d": 8, "e": 8}
    monkeypatch.setattr(identity, "_instances", lambda _: ((), (least,)))
    found = computes(program)
    assert found.wrong
    assert found.asked[-1]["n"] > 256
    assert mask_cover(program).at.items() >= {"n": found.asked[-1]["n"]}.items()


# Small tiles, whose numbers are drawn


@st.composite
def readings(draw: st.DrawFn) -> Reading:
    tall, wide = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    small = st.sampled_from([0, 0, 0, 1, -1])
    mask = draw(st.sampled_from([None, "causal", "window:1:0", "window:1:1"]))
    condition = attention(mask=mask).mask if mask else None
    m, n, bm = value("m"), value("n"), value("bm")
    end: Expression = n
    if mask:
        right = 1 if mask == "window:1:1" else 0
        end = Apply("min", (n, (bm + Constant(1)) * tall + (n - m) + (right + draw(small))))
    count = Apply("max", (end + draw(small), Constant(0))).ceildiv(max(1, wide + draw(small)))
    back = draw(st.booleans())
    key = wide * T + -wide * KT + -wide if back else wide * KT
    key = key + draw(small) * draw(st.sampled_from([0, 1]))
    row = tall * var("bm")
    cut = draw(st.sampled_from([1, 2, 3, 4, 9]))
    guards = draw(st.sampled_from([(), ((KT, cut),), ((-1 * KT + T, cut),)]))
    hides = [Hide(-1 * key, (0, -1), -1 * N + 1 + draw(small), guards)]
    if mask:
        number = row + -1 * key
        to_right = M + -1 * N + draw(small) + (-1 if mask == "window:1:1" else 0)
        hides.append(Hide(number, (1, -1), to_right, guards))
        if mask.startswith("window"):  # key < query + n - m - 1
            left = N + -1 * M + -1 + draw(small)
            hides.append(Hide(key + -1 * row, (-1, 1), left, draw(st.sampled_from([(), guards]))))
    return Reading(
        sizes=("m", "n"), rows="m", keys="n", condition=condition,
        places={"bm": m.ceildiv(tall)}, numbers={"trips": count}, turn="kt", trips="trips",
        row=row, key=key, block=wide, digits=((tall, 1, 0), (wide, 0, 1)), hides=tuple(hides),
        values=key, uses=(Weighted(KT, KT, (), loops=True),),
    )  # fmt: skip


MOST = 12


def faults(reading: Reading, rows: range, keys: range) -> set[tuple[int, int, int, int]]:
    """(m, n, row, key): visible and not summed once, or summed and not visible; at some sizes."""
    (tall, _, _), (wide, _, _) = reading.digits
    m, n, bm, kt, x, y = np.ogrid[
        rows.start : rows.stop, keys.start : keys.stop,
        : rows.stop, : keys.stop + 4, :tall, :wide,
    ]  # fmt: skip
    at: dict[str, Any] = {"m": m, "n": n, "bm": bm, "kt": kt}
    at["trips"] = reading.numbers["trips"].evaluate(at)
    row, key = reading.row.evaluate(at) + x, reading.key.evaluate(at) + y
    left = (bm < reading.places["bm"].evaluate(at)) & (kt < at["trips"]) & (row < m)
    assert int(np.max(at["trips"])) <= keys.stop + 4
    for hide in reading.hides:
        acts = True
        for index, bound in hide.guards:
            acts = acts & (index.evaluate(at) < bound)
        number = hide.number.evaluate(at) + x * hide.steps[0] + y * hide.steps[1]
        left = left & ~(acts & (number < hide.bound.evaluate(at)))
    pairs = np.stack([np.broadcast_to(one, left.shape)[left] for one in (m, n, row, key)], -1)
    found, often = np.unique(pairs, axis=0, return_counts=True)
    sums = dict(zip(map(tuple, found.tolist()), often.tolist(), strict=True))
    m, n, i, j = np.ogrid[
        rows.start : rows.stop, keys.start : keys.stop, : rows.stop, : keys.stop
    ]  # fmt: skip
    shown = (i < m) & (j < n)
    if reading.condition is not None:
        shown = shown & reading.condition.evaluate({"index(m)": i, "index(n)": j, "m": m, "n": n})
    places = np.argwhere(shown).tolist()
    seen = {(a + rows.start, b + keys.start, r, c) for a, b, r, c in places}
    return {pair for pair in seen | sums.keys() if sums.get(pair, 0) != (pair in seen)}


@settings(max_examples=40, deadline=None)
@given(readings())
def test_small_tiles_are_decided_as_their_pairs_are(reading: Reading) -> None:
    found, small = decide(reading), range(1, MOST + 1)
    if found:
        assert not faults(reading, small, small)
        return
    assert found.outcome == "wrong"
    m, n, row, key = (found.at[name] for name in ("m", "n", "row", "key"))
    assert (m, n, row, key) in faults(reading, range(m, m + 1), range(n, n + 1)), found


def test_both_answers_are_drawn() -> None:
    """Right and wrong readings are among what is drawn."""
    seen: set[str] = set()

    @settings(max_examples=15, deadline=None, database=None, derandomize=True)
    @given(readings())
    def draw(reading: Reading) -> None:
        seen.add(decide(reading).outcome)

    draw()
    assert seen == {"proved", "wrong"}


def test_places_and_conditions_beyond_linear_integers_are_unproved() -> None:
    reading = Reading(
        sizes=("m", "n"), rows="m", keys="n", condition=None, places={},
        numbers={"trips": value("n").ceildiv(value("m"))}, turn="kt", trips="trips",
        row=Affine(), key=KT, block=1, digits=((1, 0, 0),), hides=(), values=KT, uses=(),
    )  # fmt: skip
    assert decide(reading).outcome == "unproved"
    half = replace(reading, numbers={"trips": value("n") * 0.5})
    assert decide(half).outcome == "unproved"
    far = replace(reading, numbers={"trips": value("n")}, row=var("elsewhere"))
    assert decide(far).outcome == "unproved"
    other = Apply("le", (Index("k"), Constant(1)))
    assert decide(replace(reading, numbers={"trips": value("n")}, condition=other)).outcome == (
        "unproved"
    )


def test_axes_may_be_called_as_the_questions_numbers() -> None:
    """An axis turn is not the turn of a loop, nor an axis key a key."""
    wrong, right = (
        Reading(
            sizes=("turn", "key"), rows="turn", keys="key",
            condition=Apply("le", (Index("key"), Index("turn"))), places={"w": Constant(5)},
            numbers={"trips": value("key")}, turn="kt", trips="trips", row=var("w"), key=KT,
            block=1, digits=((1, 0, 0),), values=KT, uses=(Weighted(KT, KT, (), loops=True),),
            hides=(Hide(var("w") + -1 * KT, (0,), Affine(at)),),
        )
        for at in (-1, 0)
    )  # fmt: skip
    assert decide(right).outcome == "proved"
    assert decide(wrong).outcome == "wrong"
