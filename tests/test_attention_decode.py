"""Decoding: CTAs of a cluster have a part of a tile's keys each, rows of a block may be heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.hopper_terms import rewritten
from tests.sample import all_by_turns, by_turns, draws, some
from tests.test_attention_cluster import predicate
from tests.test_attention_window import sizes
from tinygpu.codegen.emit import emit
from tinygpu.codegen.run.assemble import assemble
from tinygpu.codegen.run.interpretation import COMPLETIONS
from tinygpu.codegen.run.interpretation import interpret as emulated
from tinygpu.devices.device import load_device
from tinygpu.errors import ProgramError
from tinygpu.isa.memory import DTYPES
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import check_schedule
from tinygpu.legality.mask_cover import mask_cover
from tinygpu.machines import MACHINES
from tinygpu.machines.attention import STARTS, Attention, KeyShares
from tinygpu.meaning.identity import computes
from tinygpu.meaning.interpret import interpret
from tinygpu.search.exact.best import rank
from tinygpu.search.exact.parts import parts_of
from tinygpu.search.time.cost import Placed, cost, features
from tinygpu.space.space import Space
from tinygpu.term.machine import Chosen
from tinygpu.term.machine import Value as Choosable
from tinygpu.term.operation import Problem, attention
from tinygpu.term.program import Access, Affine, Do, For, Program, Statement, Sync, When
from tinygpu.term.schedule import Schedule

SMALL = {"depth": 64, "tile_n": 64}
MASKS = ["none", "causal", "window:40:25", "window:200:0"]
MACHINE, DEVICE = MACHINES["attention"], load_device("h100")
HERE = sizes(1, 300, h=2, g=5, d=16, e=8)


@cache
def term(mask: str = "none", *, lse: bool = False, **others: Choosable) -> Program:
    operation = attention(mask=mask, lse=lse)
    return Attention().program(operation, Chosen({**STARTS["decode"], **SMALL, **others}))


@pytest.mark.parametrize(("of", "mask"), by_turns(product([1, 8, 16, 0], [1, 2, 8]), MASKS))
def test_it_is_legal_and_its_mask_is_covered(of: tuple[int, int], mask: str) -> None:
    """For every number of tiles and trips; for all rows and keys, and queries that a mask asks."""
    pack_gqa, split_kv = of
    program = term(mask, pack_gqa=pack_gqa, split_kv=split_kv)
    found = verdict(program)
    assert found.legal, str(found)
    axes = {0: "m, n", 1: "g, n" if mask == "none" else "g, m, n"}.get(pack_gqa, "g, m, n")
    assert str(mask_cover(program)) == f"mask cover proved for every {axes}"


@pytest.mark.parametrize(
    ("mask", "pack_gqa", "split_kv"),
    some([("none", 1, 1), ("none", 1, 2), ("causal", 0, 2), ("none", 0, 2), ("window:40:25", 1, 4),
          ("causal", 1, 8), ("causal", 8, 2), ("window:40:25", 0, 2), ("window:40:25", 16, 4)], 2),
)  # fmt: skip
def test_it_computes_its_operation(mask: str, pack_gqa: int, split_kv: int) -> None:
    """Also its log-sum-exp; more heads, queries or CTAs than a block of rows or keys has."""
    program = term(mask, lse=True, pack_gqa=pack_gqa, split_kv=split_kv)
    heads = {0: 2, 1: 70}.get(pack_gqa, 11)
    for here in (sizes(1, 300, h=2, g=5, d=16, e=8), sizes(3, 70, g=heads, d=16, e=8),
                 sizes(pack_gqa + 3, 90, g=heads, d=16, e=8)):  # fmt: skip
        found = computes(program, here)
        assert found, str(found)


@pytest.mark.parametrize("others", [
    {"consumer_order": "SsMELOPVv"}, {"consumer_order": "SOVsMvELP"},
    {"consumer_order": "SVsMELvOP"}, {"consumers": 2, "pack_gqa": 0},
    {"consumers": 3, "pack_gqa": 0}, {"depth": 128, "split_kv": 4},
    {"pack_gqa": 0, "consumers": 2, "queries": "registers"}, {"depth": 256},
], ids=str)  # fmt: skip
def test_its_other_decisions_are_free(others: dict[str, Choosable]) -> None:
    program = term("causal", **others)
    found = verdict(program)
    assert found.legal, str(found)
    assert mask_cover(program)
    assert computes(program, sizes(2, 200, g=2, d=16, e=16))


@pytest.mark.parametrize("pack_gqa", [1, 0])
def test_the_interpreter_gives_what_numpy_gives(pack_gqa: int) -> None:
    random, here, operation = np.random.default_rng(0), sizes(2, 300, g=5), attention()
    arrays: dict[str, Any] = {
        o.name: DTYPES["bf16"].round(random.standard_normal(operation.shapes(here)[o.name]))
        for o in operation.inputs
    }
    run = interpret(term(pack_gqa=pack_gqa), here, arrays, scalars={"scale": 0.25})
    assert run.findings == ()
    q, k, v = (arrays[name].astype(float) for name in "qkv")
    s = 0.25 * np.einsum("lhgmd,lhnd->lhgmn", q, k)
    weights = np.exp(s - s.max(-1, keepdims=True))
    wanted = np.einsum("lhgmn,lhne->lhgme", weights / weights.sum(-1, keepdims=True), v)
    assert np.abs(run.outputs["o"] - wanted).max() < 0.03


@all_by_turns(
    ("pack_gqa, split_kv", [(1, 2), (1, 8), (0, 4), (8, 2), (16, 1)]),
    ("mask", ["none", "causal"]),
    ("order", COMPLETIONS),
)
def test_its_code_is_right(pack_gqa: int, split_kv: int, mask: str, order: str) -> None:
    """Without a finding of the emulator; a CTA may have no key at all."""
    m = 10 if pack_gqa > 1 else draws(3, 10)
    program = term(mask, lse=True, pack_gqa=pack_gqa, split_kv=split_kv)
    for here in (sizes(2, 330, g=9 if pack_gqa else 1), sizes(1, 33, h=2), sizes(m, 70, g=9)):
        found = emulated(program, here, arch="sm_90a", completions=(order,))
        assert found.findings == ()
        assert found.error < 0.6


@pytest.mark.parametrize("split_kv", [1, 2, 8])
def test_no_register_is_spilled(split_kv: int) -> None:
    program = Attention().program(
        attention(), Chosen({**STARTS["decode"], "split_kv": split_kv, "stages_k": 2})
    )
    code = assemble(emit(program), "sm_90a")
    assert code.spills == 0
    assert "C75" not in code.messages


@pytest.mark.parametrize("pack_gqa", [1, 0])
def test_times_over_a_space_are_those_of_each_term(pack_gqa: int) -> None:
    operation = attention()
    problem = Problem.of(operation, l=8, h=8, g=8, m=1, n=4096, d=128, e=128)
    fixed: dict[str, Any] = {**STARTS["decode"], "pack_gqa": pack_gqa}
    fixed |= {"split_kv": (1, 2, 8), "tile_n": (64, 80), "stages_k": (2, 3)}
    found = rank(Space(MACHINE, problem, DEVICE, fixed=fixed), 12)
    assert {row.schedule["split_kv"] for row in found.best} == {1, 2, 8}
    for row in found.best:
        program = row.schedule.program(MACHINE, operation)
        assert row.seconds == pytest.approx(cost(program, problem.sizes, DEVICE).seconds)


def test_heads_of_a_block_share_what_is_loaded() -> None:
    """Of 8 heads on one the keys and values are asked for once, not eight times."""
    here = sizes(1, 4096, h=8, g=8, l=8, d=128, e=128)

    def asked(**others: Choosable) -> float:
        program = Attention().program(attention(), Chosen({**STARTS["decode"], **others}))
        return float(Placed.of(features(program, here, DEVICE)).asked_bytes)

    assert asked() < 1.1 * asked(pack_gqa=0) / 8


@pytest.mark.parametrize(
    ("law", "others"),
    [
        ("split_kv", {"persistent": 1}),
        ("split_kv", {"cluster_m": 2, "pack_gqa": 0}),
        ("split_kv", {"epilogue": "tma"}),
        ("split_kv", {"order": "longest"}),
        ("pack_gqa", {"split_kv": 1, "consumers": 2}),
        ("pack_gqa", {"split_kv": 1, "order": "longest"}),
        ("pack_gqa", {"split_kv": 1, "epilogue": "tma", "pack_gqa": 8}),
    ],
)
def test_what_does_not_go_together_is_a_law(law: str, others: dict[str, Choosable]) -> None:
    schedule = Schedule.of(MACHINE, {**STARTS["decode"], **others})
    problem = Problem.of(attention(), l=8, h=8, g=8, m=1, n=4096, d=128, e=128)
    assert law in [one.law for one in check_schedule(schedule, MACHINE, problem, DEVICE)]


@pytest.mark.parametrize(
    ("here", "pack_gqa", "split_kv"),
    [
        ({"l": 8, "h": 16, "g": 1, "m": 4096}, (0,), (1,)),
        ({"l": 1, "h": 2, "g": 1, "m": 64}, (0,), (1, 2, 4, 8)),
        ({"l": 8, "h": 8, "g": 8, "m": 1}, (0, 1), (1, 2, 4)),
        ({"l": 64, "h": 8, "g": 8, "m": 7}, (0, 8), (1,)),
        ({"l": 1, "h": 8, "g": 8, "m": 16}, (0, 16), (1, 2, 4, 8)),
    ],
)
def test_a_climb_keeps_to_what_sizes_have_room_for(
    here: dict[str, int], pack_gqa: tuple[int, ...], split_kv: tuple[int, ...]
) -> None:
    """A decision that is fixed is left as it is, and a space has all values."""
    problem = Problem.of(attention(), **here, n=4096, d=128, e=128)
    space = Space(MACHINE, problem, DEVICE)
    assert (space.worth["pack_gqa"], space.worth["split_kv"]) == (pack_gqa, split_kv)
    assert space.worth["epilogue"] == space.values["epilogue"] == ("direct", "tma")
    parts = [structure for part in parts_of(space) for structure in part]
    assert {one["split_kv"] for one in parts} == {*split_kv}
    assert len(space.structures()) > len(parts)
    fixed = Space(MACHINE, problem, DEVICE, fixed={"pack_gqa": 8, "split_kv": 8})
    assert (fixed.worth["pack_gqa"], fixed.worth["split_kv"]) == ((8,), (8,))


def test_older_schedules_share_no_keys() -> None:
    older = {n: v for n, v in STARTS["fa3"].items() if n not in ("split_kv", "pack_gqa")}
    assert Schedule.of(MACHINE, older) == Schedule.of(MACHINE, STARTS["fa3"])


# Mutants: each is found

Change = Callable[[Program], Program]


def sends(change: Callable[[Do], Statement | tuple[Statement, ...]], of: str = "parts") -> Change:
    """Change what is sent to shared memory of other CTAs."""

    def one(s: Statement) -> Statement | tuple[Statement, ...]:
        theirs = isinstance(s, Do) and s.write.buffer.home and s.write.buffer.name.startswith(of)
        return change(s) if theirs and isinstance(s, Do) else s

    return lambda program: rewritten(program, one)


def takes(change: Callable[[Do, Access], Statement], of: str = "parts") -> Change:
    """Change what is read of what others have sent."""

    def one(s: Statement) -> Statement:
        read = s.reads[0] if isinstance(s, Do) else None
        theirs = isinstance(read, Access) and read.buffer.home and read.buffer.name.startswith(of)
        return change(s, read) if theirs and isinstance(s, Do) and isinstance(read, Access) else s

    return lambda program: rewritten(program, one)


def written(**changes: Any) -> Callable[[Do], Do]:
    return lambda do: replace(do, write=replace(do.write, **changes))


def unsynced(program: Program) -> Program:
    """Let no CTA wait for another before it reads what that has sent."""
    return rewritten(program, lambda s: () if isinstance(s, Sync) and s.scope == "cluster" else s)


def early(program: Program) -> Program:
    """Let CTAs meet before they have sent their sums."""
    syncs: list[Statement] = []

    def out(s: Statement) -> Statement | tuple[Statement, ...]:
        if isinstance(s, Sync) and s.scope == "cluster":
            syncs.append(s)
            return ()
        return s

    left = rewritten(program, out)

    def back(s: Statement) -> Statement | tuple[Statement, ...]:
        first = isinstance(s, Do) and s.write.buffer.name == "parts" and s.write.peer == 0
        return (syncs[0], s) if first else s

    again = rewritten(left, back)
    producers = zip(program.roles, again.roles, strict=True)
    return replace(again, roles=tuple(a if a.name == "producer" else b for a, b in producers))


def index(number: int) -> Affine:
    return Affine(number)


ILLEGAL: dict[str, Change] = {
    "nobody waits for what is sent": unsynced,
    "CTAs meet before they send": early,
    "all send to one stage": sends(lambda do: written(index=index(0))(do)),
    "sums go to one stage": sends(lambda do: written(index=index(0))(do), "parts3"),
    "all send to the first CTA": sends(lambda do: written(peer=0)(do)),
    "the first CTA's maxima are sent to nobody": sends(
        lambda do: () if do.write.peer == 1 else do, "parts"
    ),
    "a stage that nobody writes is read": takes(
        lambda do, read: replace(do, reads=(replace(read, index=read.index + 2),)), "parts3"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ILLEGAL)
def test_a_wrong_exchange_is_not_legal(name: str) -> None:
    """By the judge; and the interpreter finds it, or that the result is another."""
    program = ILLEGAL[name](term())
    assert program != term()
    assert not verdict(program).legal
    random, shapes = np.random.default_rng(0), program.operation.shapes(HERE)
    arrays = {o.name: random.standard_normal(shapes[o.name]) for o in program.operation.inputs}
    assert any(
        interpret(program, HERE, arrays, scalars={"scale": 0.25}, seed=seed).findings
        for seed in range(12)
    )


def by_rank(factor: int) -> Callable[[Affine], Affine]:
    def change(form: Affine) -> Affine:
        terms = [(n, c * factor if n == "rank_n" and isinstance(c, int) else c)
                 for n, c in form.terms]  # fmt: skip
        return Affine(form.constant, tuple((n, c) for n, c in terms if c))

    return change


def loads(of: str, change: Callable[[Affine], Affine]) -> Change:
    """Change where loads of an input begin."""

    def one(s: Statement) -> Statement:
        read = s.reads[0] if isinstance(s, Do) else None
        if not isinstance(s, Do) or not isinstance(read, Access) or read.buffer.name not in of:
            return s
        return replace(s, reads=(replace(read, origin=tuple(map(change, read.origin))),))

    return lambda program: rewritten(program, one)


def combined(buffer: str, change: Callable[[Do], Statement | tuple[Statement, ...]]) -> Change:
    """Change what is computed into some registers."""

    def one(s: Statement) -> Statement | tuple[Statement, ...]:
        return change(s) if isinstance(s, Do) and s.write.buffer.name == buffer else s

    return lambda program: rewritten(program, one)


def first_part(program: Program) -> Program:
    """Add up the sums of the first CTA alone, as often as there are CTAs."""
    return takes(lambda do, read: replace(do, reads=(replace(read, index=Affine()),)), "parts3")(
        program
    )


def not_stored(program: Program) -> Program:
    """Let the last CTA store where the first does."""

    def one(s: Statement) -> Statement:
        if isinstance(s, Do) and s.write.buffer.name == "o":
            origin = tuple(map(by_rank(0), s.write.origin))
            return replace(s, write=replace(s.write, origin=origin))
        return s

    return rewritten(program, one)


def unmasked(program: Program) -> Program:
    """Mask a block where there is a block after it alone."""

    def one(s: Statement) -> Statement:
        masks = isinstance(s, When) and any(isinstance(b, Do) and b.where for b in s.body)
        return replace(s, bound=0) if masks and isinstance(s, When) else s

    return rewritten(program, one)


def part_of_loop(program: Program) -> Program:
    """Leave the last CTA's part out of the sums."""

    def one(s: Statement) -> Statement:
        last = s.body[-1] if isinstance(s, For) and s.var == "part" else None
        sums = isinstance(last, Do) and last.write.buffer.name == "sums"
        return replace(s, trips=1) if sums and isinstance(s, For) else s

    return rewritten(program, one)


WRONG: dict[str, tuple[str, Change]] = {
    "all CTAs load the same keys": ("unproved", loads("kv", by_rank(0))),
    "keys of one CTA, values of all": ("unproved", loads("k", by_rank(0))),
    "values of the same CTA": ("wrong", loads("v", by_rank(0))),
    "blocks that lie apart": ("unproved", loads("kv", by_rank(2))),
    "rows of their own": ("unproved", loads("q", lambda f: f + 0 if "bg" not in str(f) else
                                            Affine(f.constant, (*f.terms, ("rank_n", 64))))),
    "the mask is the first CTA's": ("wrong", predicate(by_rank(0))),
    "no block is masked": ("wrong", unmasked),
    "the first CTA's sums alone": ("proved", first_part),
    "sums of all but one": ("proved", part_of_loop),
    "slices in one place": ("proved", not_stored),
    "weights' sums do not shrink": ("proved", combined("shrinks", lambda do: replace(
        do, values=(*do.values[:-1], 1)))),
}  # fmt: skip
"""By the cover's outcome, which says nothing of what CTAs do with the parts, and a change."""


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_share_computes_something_else(name: str) -> None:
    outcome, change = WRONG[name]
    program = change(term())
    assert program != term()
    found = mask_cover(program)
    assert found.outcome == outcome, found
    assert not computes(program, HERE)


def head(change: Callable[[Affine], Affine], *, to: bool) -> Change:
    """Change where a head's queries are loaded from, or to which lines."""

    def one(s: Statement) -> Statement:
        read = s.reads[0] if isinstance(s, Do) else None
        if not isinstance(s, Do) or not isinstance(read, Access) or read.buffer.name != "q":
            return s
        if to:
            origin = tuple(map(change, s.write.origin))
            return replace(s, write=replace(s.write, origin=origin))
        return replace(s, reads=(replace(read, origin=tuple(map(change, read.origin))),))

    return lambda program: rewritten(program, one)


def steps(name: str, step: int) -> Callable[[Affine], Affine]:
    return lambda form: Affine(
        form.constant, tuple((n, step if n == name else c) for n, c in form.terms)
    )


def by_thread(digit: int, step: int) -> Change:
    """Let the mask count queries otherwise by a digit of threads."""

    def one(s: Statement) -> Statement:
        if not isinstance(s, Do) or s.where is None or not any(s.where.thread):
            return s
        thread = tuple(step if i == digit else n for i, n in enumerate(s.where.thread))
        return replace(s, where=replace(s.where, thread=thread))

    return lambda program: rewritten(program, one)


PACKED: dict[str, tuple[str, Change]] = {
    "all lines of the first head": ("unproved", head(steps("head", 0), to=False)),
    "every second head": ("proved", head(steps("head", 2), to=False)),
    "heads at one place": ("unproved", head(steps("head", 0), to=True)),
    "heads that overlap": ("unproved", head(steps("head", 4), to=True)),
    "queries of the block after": ("wrong", head(
        lambda f: f + 8 if "bm" in str(f) else f, to=False)),
    "a query for each two rows": ("wrong", by_thread(1, 0)),
    "a query for each warp": ("wrong", by_thread(2, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", PACKED)
def test_a_wrong_block_of_heads_is_not_proved(name: str) -> None:
    """By the cover, or where it has not to say anything by the laws of where tiles lie."""
    outcome, change = PACKED[name]
    right = term("causal", pack_gqa=8)
    program = change(right)
    assert program != right
    found = mask_cover(program)
    assert found.outcome == outcome, found
    assert not computes(program, sizes(11, 90, g=11, d=16, e=8))


@pytest.mark.parametrize(
    ("over", "vector", "slices", "why"),
    [
        ("rank_n", "half both", "chunk", "has no slice for each of the 2 CTAs of rank_n"),
        ("rank_n", "chunk half", "peer", "which do not end in chunk half"),
        ("w", "half both", "peer", "copies of a role counts w, not the cluster"),
    ],
)
def test_what_cannot_be_sent_is_an_error_at_its_line(
    monkeypatch: pytest.MonkeyPatch, over: str, vector: str, slices: str, why: str
) -> None:
    def add_up(_: KeyShares, rows: Any) -> None:
        rows.k.send(rows.acc, over=over, vector=vector, slices=slices)

    monkeypatch.setattr(KeyShares, "add_up", add_up)
    with pytest.raises(ProgramError, match=rf"test_attention_decode.py:\d+: .*{why}"):
        Attention().program(attention(), Chosen({**STARTS["decode"], "depth": 256}))
