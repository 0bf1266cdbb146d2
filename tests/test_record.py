"""What was recorded before the code was rebuilt: a seeded sample of it, made anew.

All of it: ``python -m benchmarks.record --check``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.problems import operation_of
from benchmarks.record import (
    COUNTS,
    FOLDER,
    LOTS,
    PARTS,
    WHOLE,
    Record,
    advice,
    differences,
    drawn,
    load,
    main,
)
from benchmarks.record_terms import verdict_lots
from tinygpu.legality.laws import LAWS
from tinygpu.machines import MACHINES
from tinygpu.term.operation import OPERATIONS

SAMPLES = {
    "ptx": (8, 1), "verdicts": (5, 4), "times": (20, 1), "counts": (4, 1), "nodes": (2, 1),
    "meanings": (3, 1), "texts": (10, 2),
}  # fmt: skip
"""Of how many lots how many entries are made anew."""


def sampled(record: Record, seed: int = 0) -> dict[str, Sequence[int]]:
    rng = np.random.default_rng(seed)
    lots, each = SAMPLES[record.part]
    taken = rng.choice(len(record.lots), min(lots, len(record.lots)), replace=False)
    return {
        lot.name: sorted(rng.choice(len(lot.values), min(each, len(lot.values)), replace=False))
        for lot in (record.lots[i] for i in taken)
    }


@pytest.mark.parametrize("part", PARTS)
def test_a_sample_is_as_recorded(part: str) -> None:
    record = load(part)
    found = list(differences(record, sampled(record)))
    assert not found, "\n".join([*found, advice(part)])


@pytest.mark.parametrize("part", ["ptx", "times"])
def test_schedules_of_every_machine_and_operation_are_recorded(part: str) -> None:
    record = load(part)
    places = [lot.name.split(" | ") for lot in record.lots]
    counts = {
        name: sum(len(lot.keys) for lot in record.lots if lot.name.startswith(f"{name} "))
        for name in MACHINES
    }
    assert counts == COUNTS[part]
    assert {operation_of(text).name for _, text, _ in places} == {*OPERATIONS, "reduce"}
    words = {word for place, text, _ in places for word in (*place.split(), *text.split())}
    assert words >= {"nn", "nt", "tn", "tt", "scaled", "bias", "batched", "relu", "gelu", "silu"}
    assert words >= {"f64", "f32", "tf32", "f16", "bf16", "e4m3", "e5m2"}
    assert words >= {"h200", "b200", "a100", "rtx3060"}
    assert len({lot.name for lot in record.lots}) == len(record.lots)
    assert all(len({*lot.keys}) == len(lot.keys) for lot in record.lots)


def test_every_lot_of_verdicts_is_recorded() -> None:
    record = load("verdicts")
    assert [lot.name for lot in record.lots] == [*verdict_lots()]
    further = [lot for lot in record.lots if lot.name.startswith("further")]
    assert sum(len(lot.values) for lot in further) == 3000
    words = {value for lot in further for value in lot.values}
    assert words >= {"proved", "race", "deadlock", "stale", "balance", "unwritten"}


@pytest.mark.parametrize("part", ["counts", "nodes"])
def test_spaces_of_every_machine_are_recorded(part: str) -> None:
    record = load(part)
    whole = [lot.name for lot in record.lots if lot.keys == ("",)]
    assert whole == [*WHOLE[part]]
    places = Counter(lot.name.split()[0] for lot in record.lots if lot.keys != ("",))
    assert places == COUNTS[part]
    assert len({lot.name for lot in record.lots}) == len(record.lots)


@pytest.mark.parametrize("part", ["meanings", "texts"])
def test_every_term_of_the_corpora_is_recorded(part: str) -> None:
    record = load(part)
    drawn_of = Counter[str]()
    for lot in record.lots:
        drawn_of[lot.name.split()[0]] += len(lot.keys) * (" | " in lot.name)
    assert +drawn_of == Counter(COUNTS[part])
    recorded = {lot.name: lot.keys for lot in record.lots if " | " not in lot.name}
    assert recorded == {name: tuple(words()) for name, words in LOTS[part]().items()}


def test_meanings_are_of_every_kind() -> None:
    found = [value for lot in load("meanings").lots for value in lot.values]
    for words in ("proved for every m, n, k", "tested at", "does not compute its operation",
                  "not asked", "refused: ProgramError", "wrong_result", "race"):  # fmt: skip
        assert any(words in value for value in found), words


def test_laws_and_requirements_are_recorded_in_words() -> None:
    found = {
        line.split(": ")[0]
        for lot in load("texts").lots
        for value in lot.values
        for line in value.splitlines()
    }
    own = {name for name in found if name.isidentifier()} - {*LAWS}
    assert len(found & {*LAWS}) >= 30, {*LAWS} - found
    assert len(own) >= 20, own


def test_records_are_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 621_400


def of_first(part: str, value: str) -> list[str]:
    """The differences if the first entry had been recorded as ``value``."""
    record = load(part)
    lot = record.lots[0]
    other = replace(lot, values=(value, *lot.values[1:]))
    return list(differences(replace(record, lots=(other,)), {lot.name: [0]}))


def test_a_difference_says_what_was_and_what_is() -> None:
    (line,) = of_first("verdicts", "race")
    assert "hopper wrong: 0: was race, is " in line
    first = load("times").lots[0].values[0]
    (line,) = of_first("times", repr(float(first) * 1.01))
    assert f"is {first} (by 0.0099 of it)" in line
    assert not of_first("times", repr(float(np.nextafter(float(first), 1.0))))
    whole, code = load("ptx").lots[0].values[0].split()
    (line,) = of_first("ptx", f"{'0' * 64} {code}")
    assert "only comments differ" in line
    (line,) = of_first("ptx", f"{'0' * 64} 00000000")
    assert line.endswith(f"is {whole} {code}")


def test_one_changed_value_of_a_space_is_noticed() -> None:
    count = load("counts").lots[0].values[0]
    (line,) = of_first("counts", str(int(count) + 1))
    assert f"was {int(count) + 1}, is {count}" in line
    value = load("nodes").lots[0].values[0]
    scored, seconds = value.split()[0], value.split()[3]
    late, near = (repr(float(seconds) * f) for f in (1.01, 1.0 + 4e-16))
    assert of_first("nodes", f"{int(scored) + 1}{value.removeprefix(scored)}")
    assert of_first("nodes", value.replace(seconds, late, 1))
    assert near != seconds
    assert not of_first("nodes", value.replace(seconds, near, 1))
    assert of_first("nodes", f"{value}0")


@pytest.mark.parametrize("part", ["meanings", "texts"])
def test_one_changed_word_is_noticed(part: str) -> None:
    """Of a schedule that was drawn, and of a term of a corpus."""
    record = load(part)
    for lot in (record.lots[0], next(t for t in record.lots if t.name == "hostile RIGHT")):
        other = replace(lot, values=(f"{lot.values[0]}.", *lot.values[1:]))
        (line,) = differences(replace(record, lots=(other,)), {lot.name: [0]})
        assert f"was {lot.values[0]}., is {lot.values[0]}" in line


def test_a_term_that_is_none_any_more_is_a_difference() -> None:
    record = load("texts")
    lot = replace(record.lots[-1], keys=("nothing",), values=("legal",))
    (line,) = differences(replace(record, lots=(lot,)))
    assert "is KeyError" in line
    record = load("counts")
    lot = replace(record.lots[0], keys=("nothing=1",), values=("1",))
    (line,) = differences(replace(record, lots=(lot,)))
    assert "is ScheduleError" in line


def test_a_lot_that_cannot_be_made_is_a_difference() -> None:
    record = load("verdicts")
    lot = record.lots[0]
    longer = replace(lot, values=(*lot.values, "race"))
    (line,) = differences(replace(record, lots=(longer,)))
    assert f"has {len(lot.values)} terms" in line
    (line,) = differences(replace(record, lots=(replace(lot, name="nothing"),)))
    assert "cannot be made" in line


def test_a_schedule_that_is_none_any_more_is_a_difference() -> None:
    record = load("ptx")
    lot = record.lots[0]
    strange = replace(lot, keys=(f"3{lot.keys[0]}",), values=lot.values[:1])
    (line,) = differences(replace(record, lots=(strange,)))
    assert "ScheduleError" in line


def test_what_to_do_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = load("times")
    lot = replace(record.lots[0], values=("1.0",) * len(record.lots[0].values))
    monkeypatch.setattr("benchmarks.record.load", lambda *_: replace(record, lots=(lot,)))
    with pytest.raises(SystemExit):
        main(["--check", "--only", "times"])
    said = capsys.readouterr().out
    assert f"times: {len(lot.values)} differences" in said
    assert "Mend the code" in said
    assert "docs/decisions.md" in said


def test_to_record_anew_keeps_what_is_legal_and_draws_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = load("ptx")
    first, second, *others = (lot for lot in record.lots if lot.name.startswith("rows "))
    assert len(first.keys) > 1
    strange = replace(first, keys=(f"3{first.keys[0]}", *first.keys[1:]))
    count = sum(len(lot.keys) for lot in (first, second, *others))
    monkeypatch.setattr("benchmarks.record.COUNTS", {"ptx": {"rows": count}})
    kept, *rest = drawn("ptx", replace(record, lots=(strange, *others)))
    assert (kept.keys, kept.values) == (first.keys[1:], first.values[1:])
    assert tuple(rest[: len(others)]) == tuple(others)
    assert len({lot.name for lot in rest}) == len(rest)
    assert sum(len(lot.keys) for lot in (kept, *rest)) == count
