"""A term's text reads back equal, and nothing else is read."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hopper_terms import rewritten
from tests.sample import some
from tinygpu.devices.device import load_device
from tinygpu.errors import ProgramError
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.machines import MACHINES
from tinygpu.space.space import Space
from tinygpu.term.fields import KNOWN
from tinygpu.term.machine import Chosen
from tinygpu.term.machine import Value as Choosable
from tinygpu.term.operation import Operation, Problem, attention, elementwise, matmul, softmax
from tinygpu.term.plan import one_kernel
from tinygpu.term.program import Affine, Do, Program, Statement
from tinygpu.term.text import CLASSES, key_of, parse, text_of

TENSOR = matmul("bf16", layout="nt")
OPERATIONS: dict[str, Operation] = {
    "simt": matmul(), "ampere": TENSOR, "hopper": TENSOR, "blackwell": TENSOR,
    "attention": attention(mask="window:40:3", lse=True),
    "ampere_attention": attention(mask="causal"),
}  # fmt: skip


def presets(name: str) -> Mapping[str, Mapping[str, Choosable]]:
    module = importlib.import_module(f"tinygpu.machines.{name}")
    found: Mapping[str, Mapping[str, Choosable]]
    found = module.LADDER if name == "simt" else module.STARTS
    return found


@cache
def term(name: str, point: str) -> Program:
    return MACHINES[name].program(OPERATIONS[name], Chosen(presets(name)[point]))


@pytest.mark.parametrize(
    ("name", "point"), some(((name, point) for name in OPERATIONS for point in presets(name)), 2)
)
def test_a_term_reads_back_equal(name: str, point: str) -> None:
    program = term(name, point)
    text = text_of(program)
    found = parse(text)
    assert found == program
    assert text_of(found) == text
    assert str(verdict(found)) == str(verdict(program))


@pytest.mark.parametrize(
    ("name", "operation", "sizes"),
    [
        ("elementwise", elementwise("max(a*x, 0) / x"), {"i": 4096}),
        ("rows", softmax(), {"i": 512, "j": 3000}),
        ("hopper", matmul("e4m3", "bf16", "nt"), {"m": 4096, "n": 4096, "k": 4096}),
    ],
)
def test_drawn_terms_read_back_equal(
    name: str, operation: Operation, sizes: dict[str, int]
) -> None:
    space = Space(MACHINES[name], Problem.of(operation, **sizes), load_device("h100"))
    for schedule in space.sample(np.random.default_rng(0), 12):
        program = schedule.program(MACHINES[name], operation)
        assert parse(text_of(program)) == program


def test_every_part_of_a_term_has_a_text() -> None:
    """A class that walks know and this one does not would be refused; none is."""
    assert {*KNOWN} - {"Instruction"} <= {*CLASSES}
    program = term("hopper", "plain")
    text = text_of(program)
    for kind in ("Program", "Role", "Buffer", "Barrier", "Do", "Wait", "Operation", "Affine"):
        assert kind in text
    assert key_of(text) != key_of(text.replace("stages=2", "stages=3", 1))


@pytest.mark.parametrize(
    "changed",
    [
        {"vector": 2},
        {"multicast": "rank_m"},
        {"fresh": Affine(1)},
        {"lanes": (1, 2, 0)},
    ],
    ids=str,
)
def test_a_changed_field_is_written(changed: dict[str, Any]) -> None:
    """Defaults alone are left out; what is changed reads back as it was changed."""
    program = term("hopper", "ring")

    def one(s: Statement) -> Statement:
        return replace(s, **changed) if isinstance(s, Do) and s.variant == "fma" else s

    other = rewritten(program, one)
    assert text_of(other) != text_of(program)
    assert parse(text_of(other)) == other


@pytest.mark.parametrize("name", ["own.fma", "fma"])
def test_an_instruction_of_ones_own_is_given_again(name: str) -> None:
    """Also one that has the name of the package's, which the text alone would take for that."""
    own = replace(INSTRUCTIONS["fma"], name=name, per_cycle=1.0)

    def one(s: Statement) -> Statement:
        return replace(s, instruction=own) if isinstance(s, Do) and s.variant == "fma" else s

    program = rewritten(term("simt", "naive"), one)
    text = text_of(program)
    assert f"Instruction('{name}', own=True)" in text
    with pytest.raises(ProgramError, match=rf"line \d+ .*{name} is the user's own; give it"):
        parse(text)
    assert parse(text, {name: own}) == program
    assert parse(text, {name: own}) != term("simt", "naive")


def test_a_term_over_a_space_has_no_text() -> None:
    fixed: dict[str, Any] = {**presets("hopper")["ring"], "stages": (3, 4)}
    problem = Problem.of(TENSOR, m=512, n=512, k=512)
    (batch,) = Space(MACHINES["hopper"], problem, load_device("h100"), fixed=fixed).batches()
    with pytest.raises(ProgramError, match="no Shared"):
        text_of(one_kernel(batch.program))


TEXT = text_of(term("hopper", "ring"))
REFUSED = {
    "another version": (TEXT.replace("term 1", "term 2", 1), "begins with '# tinygpu term 1'"),
    "nothing": ("", "begins with"),
    "no term": ("# tinygpu term 1\n", "ends in Program"),
    "something else": ("# tinygpu term 1\nValue(name='x')\n", "ends in Program"),
    "no Python": (TEXT + ")", "unmatched"),
    "a call": (TEXT.replace("stages=4", "stages=__import__('os')", 1), "is no part of a term"),
    "arithmetic": (TEXT.replace("stages=4", "stages=2 + 2", 1), "is no part of a term"),
    "an attribute": (TEXT.replace("stages=4", "stages=Buffer.name", 1), "is no part of a term"),
    "a list": (TEXT.replace("stages=4", "stages=[4]", 1), "is no part of a term"),
    "a star": (TEXT.replace("stages=4", "**{'stages': 4}", 1), "takes name"),
    "a field that there is not": (TEXT.replace("stages=4", "stage=4", 1), "Buffer takes name"),
    "a field twice": (TEXT.replace("stages=4", "stages=4, stages=4", 1), "takes name"),
    "another order": (
        TEXT.replace("name='full', stages=4", "stages=4, name='full'", 1), "Barrier takes name"),
    "a field that is missing": (TEXT.replace("name='full', ", "", 1), "missing"),
    "a string for a number": (TEXT.replace("stages=4", "stages='4'", 1), "stages is 4"),
    "a fraction for a number": (TEXT.replace("stages=4", "stages=4.0", 1), "stages is 4.0"),
    "an unknown class": (TEXT.replace("Fence(", "Fences(", 1), "is no part of a term"),
    "an unknown instruction": (TEXT.replace("('wgmma')", "('wgmmas')"), "wgmma"),
    "an undefined buffer": (TEXT.replace("=buffer_a", "=buffer_z", 1), "buffer_z is no part"),
    "another name": (TEXT.replace("barrier_full =", "barrier_ful =", 1), "no buffer or barrier"),
    "defined twice": (TEXT.replace("barrier_empty =", "barrier_full =", 1), "no definition"),
    "defined and not used": (
        TEXT.replace("barrier_empty =",
                     "buffer_z = Buffer(name='z', level='smem', dtype='f32', shape=(1,), "
                     "stride=(1,))\nbarrier_empty =", 1), "defines other buffers"),
    "too deep": (TEXT.replace("parameters=(", "parameters=(" + "(" * 80 + ")" + ",)" * 79 + ",", 1),
                 "60 levels"),
    "a law of terms": (TEXT.replace("stages=4", "stages=0", 1), "it has to be 1 or more"),
    "a trip count of no name": (TEXT.replace("trips='trips'", "trips='often'", 1), "often"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_term_is_refused(name: str) -> None:
    text, why = REFUSED[name]
    assert text != TEXT
    with pytest.raises(ProgramError, match=re.escape(why)):
        parse(text)


TOKENS = re.findall(r"\w+|'[^']*'|[^\w\s]|\s+", TEXT)


@given(
    st.lists(
        st.tuples(st.integers(0, len(TOKENS) - 1), st.integers(0, len(TOKENS) - 1),
                  st.sampled_from(["copy", "drop", "swap", "0", "-1", "''", "None", "inf"])),
        min_size=1, max_size=3,
    )
)  # fmt: skip
def test_edited_texts_are_refused_or_are_terms(edits: list[tuple[int, int, str]]) -> None:
    """No other error; and what is read is written as it was read, up to spaces and defaults."""
    tokens = list(TOKENS)
    for at, other, how in edits:
        match how:
            case "copy":
                tokens[at] = tokens[other]
            case "drop":
                tokens[at] = ""
            case "swap":
                tokens[at], tokens[other] = tokens[other], tokens[at]
            case _:
                tokens[at] = how
    try:
        found = parse("".join(tokens))
    except ProgramError:
        return
    assert parse(text_of(found)) == found
