"""What was recorded before the code was rebuilt: a seeded sample of it, made anew.

All of it: ``python -m benchmarks.record --check``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.record import (
    COUNTS,
    FOLDER,
    PARTS,
    Record,
    advice,
    differences,
    drawn,
    load,
    main,
    operation_of,
    verdict_lots,
)
from tinygpu.machines import MACHINES
from tinygpu.term.operation import OPERATIONS

SAMPLES = {"ptx": (12, 1), "verdicts": (10, 6), "times": (40, 1)}
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
    assert {operation_of(text).name for _, text, _ in places} == {*OPERATIONS, "reduce"} - {
        "attention"
    }
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


def test_records_are_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 500_000


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
