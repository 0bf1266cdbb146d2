"""Kernels made wrong in their text: what is wrong is found, even where the result is right."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from tests.ptx_runs import run_matmul, term_of
from tests.test_ptx_kernels import ASYNC, PLAIN, SMALL
from tests.test_ptx_more_kernels import handmade
from tinygpu.codegen.emit import emit
from tinygpu.machines.hopper import STARTS

HOPPER = {"m": 128, "n": 768, "k": 384}


@functools.cache
def emitted(name: str) -> str:
    return emit(term_of("hopper", STARTS[name], "bf16", "nt"))


def mutant(name: str, pattern: str, replacement: str, nth: int = 0) -> str:
    """The kernel's text with the nth match of a pattern replaced."""
    text = emitted(name)
    found = list(re.finditer(pattern, text))
    assert nth < len(found), f"{name} has no {pattern!r} number {nth}"
    match = found[nth]
    changed = text[: match.start()] + match.expand(replacement) + text[match.end() :]
    assert changed != text
    return changed


def more_bytes(more: int) -> tuple[str, str]:
    """What makes the producer expect other bytes than land: a pattern and its replacement."""
    pattern = r"(\tmbarrier\.arrive\.expect_tx[^\n]*), (%r\d+);"
    return pattern, rf"\tadd.s32 \2, \2, {more};\n\1, \2;"


FAULTS: dict[str, tuple[str, str, str, int, set[str]]] = {
    "no proxy fence before the store": (
        "cluster", r"\tfence\.proxy\.async\.shared::cta;\n(\tadd[^\n]*\n\tbar\.sync)", r"\1",
        1, {"proxy"},
    ),
    "no fence of the barriers' making": (
        "cluster", r"\tfence\.mbarrier_init\.release\.cluster;\n", "", 0, {"race", "proxy"},
    ),
    "no fence between making a barrier and loading onto it": (
        "pingpong", r"\tfence\.proxy\.async[^\n]*;\n", "", 0, {"proxy"},
    ),
    "no barrier between stmatrix and the store": (
        "cluster", r"(stmatrix[^\n]*\n\tfence[^\n]*\n(?:\tadd[^\n]*\n)?)\tbar\.sync[^\n]*\n", r"\1",
        1, {"race"},
    ),
    "no wait for the store's reading": (
        "cluster", r"\tcp\.async\.bulk\.wait_group\.read 1;\n", "", 1, {"race"},
    ),
    "no wait for the last stores": (
        "cluster", r"\tcp\.async\.bulk\.wait_group\.read 0;\n", "", 0, {"exit"},
    ),
    "stores not committed": ("cluster", r"\tcp\.async\.bulk\.commit_group;\n", "", 0, {"race"}),
    "released before the products are done": (
        "cluster", r"wgmma\.wait_group\.sync\.aligned 1", "wgmma.wait_group.sync.aligned 2",
        0, {"race"},
    ),
    "results read before the products are done": (
        "cluster", r"\twgmma\.wait_group\.sync\.aligned 0;\n", "", 0, {"register"},
    ),
    "no wgmma.fence": ("cluster", r"\twgmma\.fence\.sync\.aligned;\n", "", 0, {"register"}),
    "no wait for full": (
        "cluster", r"\$wait_\d+:\n[^\n]*try_wait[^\n]*\n[^\n]*\n(\twgmma)", r"\1", 0, {"race"},
    ),
    "no wait for empty": (
        "cluster", r"\$wait_\d+:\n[^\n]*try_wait[^\n]*\n[^\n]*\n(?!\twgmma)", "", 0, {"race"},
    ),
    "full's parity frozen": (
        "cluster", r"(try_wait[^\n]*), %r\d+;(\n[^\n]*\n\twgmma)", r"\1, 0;\2", 0, {"race"},
    ),
    "empty's parity frozen": (
        "cluster", r"(try_wait[^\n]*), %r\d+;(?!\n[^\n]*\n\twgmma)", r"\1, 0;", 0, {"deadlock"},
    ),
    "too many bytes": (
        "cluster", *more_bytes(16), 0, {"deadlock"},
    ),
    "too few bytes": ("cluster", *more_bytes(-16), 0, {"deadlock"}),
    "one arrival fewer": (
        "cluster", r"(mbarrier\.init[^\n]*), 4;", r"\1, 3;", 0, {"race"},
    ),
    "one arrival more": (
        "cluster", r"(mbarrier\.init[^\n]*), 4;", r"\1, 5;", 0, {"deadlock"},
    ),
    "a peer not released": (
        "cluster", r"\tmbarrier\.arrive\.shared::cluster[^\n]*\n", "", 1, {"deadlock"},
    ),
    "no multicast": ("cluster", r"cvt\.u16\.u32 (%h\d+), %r\d+;", r"mov.u16 \1, 1;", 0,
                     {"deadlock"}),
    "registers not given back": (
        "cluster", r"\tsetmaxnreg\.dec[^\n]*\n", "", 0, {"deadlock"},
    ),
    "ends while a peer may still arrive": (
        "cluster", r"\tbarrier\.cluster\.arrive[^\n]*\n\tbarrier\.cluster\.wait[^\n]*\n(?=\tret)",
        "", 0, {"exit"},
    ),
    "turns not kept": (
        "pingpong", r"\$wait_\d+:\n[^\n]*try_wait[^\n]*\n[^\n]*\n", "", 1, {"race"},
    ),
    "outside of the array": (
        "cluster", r"mad\.lo\.s32 (%r\d+), (%r\d+), 49152, 16384;",
        r"mad.lo.s32 \1, \2, 49152, 262144;", 0, {"address"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_hopper(fault: str) -> None:
    """Each classic mistake shows, as what it is."""
    name, pattern, replacement, nth, kinds = FAULTS[fault]
    text = mutant(name, pattern, replacement, nth)
    program = term_of("hopper", STARTS[name], "bf16", "nt")
    outcome = run_matmul(program, HOPPER, text=text, clusters=1)
    assert kinds & outcome.report.kinds, list(map(str, outcome.report.findings))


def test_the_originals_have_none() -> None:
    """At the mutants' size, with as few clusters: else the mutants would prove nothing."""
    for name in {fault[0] for fault in FAULTS.values()}:
        program = term_of("hopper", STARTS[name], "bf16", "nt")
        outcome = run_matmul(program, HOPPER, clusters=1)
        assert outcome.right
        assert outcome.report.findings == ()


def test_a_wrong_stride_is_a_wrong_result() -> None:
    """A descriptor whose rows are half as far apart reads other elements, all of them written."""
    program = term_of("hopper", STARTS["cluster"], "bf16", "nt")
    text = emitted("cluster").replace("0x4000004000010000", "0x4000002000010000")
    assert not run_matmul(program, HOPPER, text=text, clusters=1).right


def drops(text: str, pattern: str) -> list[str]:
    """The texts that lack one line that matches."""
    lines = text.split("\n")
    found = [n for n, line in enumerate(lines) if re.match(pattern, line)]
    return ["\n".join([*lines[:n], "", *lines[n + 1 :]]) for n in found]


@pytest.mark.parametrize("name", ["plain", "register", "cp.async"])
def test_every_barrier_of_simt_is_needed(name: str) -> None:
    """Without any one bar.sync or cp.async.wait_group there is a race."""
    point = {"plain": PLAIN, "register": SMALL, "cp.async": ASYNC}[name]
    program = term_of("simt", point)
    text = emit(program)
    sizes = {"m": 16, "n": 16, "k": 72}
    mutants = drops(text, r"\t(bar\.sync|cp\.async\.wait_group)")
    assert mutants
    for mutated in mutants:
        assert run_matmul(program, sizes, text=mutated).report.kinds == {"race"}


def test_uncommitted_copies() -> None:
    """A copy that no group holds is not waited for."""
    program = term_of("simt", ASYNC)
    text = emit(program).replace("cp.async.commit_group;", "")
    assert "race" in run_matmul(program, {"m": 16, "n": 16, "k": 72}, text=text).report.kinds


BY_HAND = {
    "lax wait": ("sm80_mma", "cp.async.wait_group 1;", "cp.async.wait_group 2;", "race"),
    "no bar.sync": ("sm80_mma", "  bar.sync 0;", "  ", "race"),
    "wrong quarter": (
        "sm100_one", "shl.b32 %r19, %r14, 21;", "shl.b32 %r19, %r14, 22;", "tensor memory",
    ),
    "no dealloc": (
        "sm100_one", "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r20, 128;", "",
        "tensor memory",
    ),
    "no wait::ld": ("sm100_one", "tcgen05.wait::ld.sync.aligned;", "", "race"),
    "no tcgen05.fence": ("sm100_one", "tcgen05.fence::after_thread_sync;", "", "proxy"),
    "refill before commit": ("sm100_one", "@!%p1 bra WAITMMA;", "", "race"),
    "one CTA not told": ("sm100_pair", "mov.u16 %h0, 3;", "mov.u16 %h0, 1;", "deadlock"),
    "a pair ends apart": ("sm100_pair", "barrier.cluster.wait.acquire.aligned;", "", "race"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BY_HAND)
def test_faults_by_hand(fault: str) -> None:
    """mma.sync and tcgen05."""
    name, old, new, kind = BY_HAND[fault]
    text = (Path(__file__).parent / "ptx" / f"{name}.ptx").read_text(encoding="utf-8")
    assert old in text
    changed = text.replace(old, new)
    if fault == "refill before commit":
        changed = re.sub(r"WAITMMA:[^\n]*\n[^\n]*\n", "", changed)
    report, _ = handmade(name, changed)
    assert kind in report.kinds, list(map(str, report.findings))


def test_both_parties_are_named() -> None:
    """A race names both lines; a deadlock says who waits for what."""
    program = term_of("hopper", STARTS["cluster"], "bf16", "nt")
    text = mutant(
        "cluster", r"wgmma\.wait_group\.sync\.aligned 1", "wgmma.wait_group.sync.aligned 2", 0
    )
    [race] = [
        f for f in run_matmul(program, HOPPER, text=text, clusters=1).report.findings
        if "multicast" not in f.text and f.kind == "race"
    ]  # fmt: skip
    lines = text.split("\n")
    assert "cp.async.bulk.tensor" in race.text
    assert race.text.split()[0] in lines[race.line - 1]
    assert "wgmma.mma_async" in lines[race.other_line - 1]
    assert race.other_text.startswith("wgmma.mma_async")
    text = mutant("cluster", *more_bytes(16))
    findings = run_matmul(program, HOPPER, text=text, clusters=1).report.findings
    messages = [f.message for f in findings if f.kind == "deadlock"]
    assert any("0 of 1 arrivals and 16 B missing" in m for m in messages)
    assert any("warp 8 of CTA 0: for parity" in m for m in messages)
