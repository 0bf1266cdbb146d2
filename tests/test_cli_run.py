"""``tinygpu run``: the PTX on arrays, its sizes, what it says of hazards, when a GPU is taken."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.fake_gpu import Card
from tests.sample import SOAK, some
from tinygpu.cli import app
from tinygpu.codegen.emit import emit
from tinygpu.codegen.run import interpretation
from tinygpu.machines import MACHINES, ampere, blackwell, hopper, simt
from tinygpu.term.machine import Value
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.schedule import Schedule, to_json

POINTS: dict[str, tuple[Mapping[str, Value], str, str, str]] = {
    "simt": (simt.LADDER["multi-stage"], "f32", "nn", "h200"),
    "hopper": (hopper.STARTS["pingpong"], "bf16", "nt", "h200"),
    "ampere": (ampere.STARTS["deep"], "bf16", "nt", "a100"),
    "blackwell": (blackwell.STARTS["cluster" if SOAK else "ring"], "bf16", "nt", "b200"),
}

ONE_TILE = ("-m", 20, "-n", 20, "-k", 40)


@pytest.fixture
def run(tmp_path: Path, card: Card) -> Callable[..., Result]:
    """Run a machine's schedule where there is no GPU."""

    card.missing("GPU: this machine has none")

    def call(machine: str, *words: object) -> Result:
        point, dtype, layout, device = POINTS[machine]
        problem = Problem.of(matmul(dtype, layout=layout), m=4096, n=4096, k=4096)
        path = tmp_path / f"{machine}.json"
        path.write_text(to_json(Schedule.of(MACHINES[machine], point), problem), encoding="utf-8")
        given = ["run", str(path), "--device", device, *map(str, words)]
        return CliRunner().invoke(app, given)

    return call


@pytest.mark.parametrize("machine", POINTS)
def test_every_machine_is_interpreted(machine: str, run: Callable[..., Result]) -> None:
    """Right, in three orders, at small sizes that reach over the edges; and it says what it is."""
    result = run(machine)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("right: worst error 0.")
    assert "no hazards" in result.stdout
    assert "interpreted, not timed" in result.stdout
    assert "no run on a GPU: GPU: this machine has none" in result.stdout


@pytest.mark.parametrize("machine", some(POINTS, 4))
def test_all_is_told_as_json(machine: str, run: Callable[..., Result]) -> None:
    """What was run, with which seed, and how far off it is."""
    tree = json.loads(run(machine, "--backend", "interpreter", "--seed", 5, "--json").stdout)
    assert (tree["where"], tree["seed"], tree["findings"]) == ("interpreter", 5, [])
    assert tree["orders"] == ["late", "early", "random"]
    assert 0 < tree["error"] <= 1
    assert tree["instructions"] > 1000
    assert all(size < 4096 for size in tree["sizes"].values())


def test_sizes_are_taken(run: Callable[..., Result]) -> None:
    """Those that are given; a size that the schedule cannot have is one line."""
    tree = json.loads(run("hopper", "-m", 40, "-n", 72, "-k", 48, "--json").stdout)
    assert tree["sizes"] == {"m": 40, "n": 72, "k": 48}
    some = json.loads(run("hopper", "-m", 40, "--json").stdout)["sizes"]
    assert some["m"] == 40 != some["n"]
    result = run("hopper", "-k", 77)
    assert result.exit_code == 2
    assert "multiple of 16 B" in result.stderr


def test_hazards_have_their_line(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its barriers the kernel races: status 1, and both lines of PTX."""

    def without(*given: Any, **how: Any) -> str:
        return re.sub(r"bar\.sync 0;", "", emit(*given, **how))

    monkeypatch.setattr(interpretation, "emit", without)
    result = run("simt", *ONE_TILE)
    assert result.exit_code == 1
    assert re.search(
        r"line \d+: race: ld\.shared.*the other is line \d+: st\.shared", result.stdout
    )
    assert result.stdout.startswith("wrong: worst error")
    assert json.loads(run("simt", *ONE_TILE, "--json").stdout)["findings"]


def test_a_wrong_result_fails(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    """No hazard, but the product is not the one that was asked for."""

    def other(*given: Any, **how: Any) -> str:
        return re.sub(r"(mov\.f32 %\w+), 0f0{8}", r"\1, 0f3F800000", emit(*given, **how))

    monkeypatch.setattr(interpretation, "emit", other)
    result = run("simt", *ONE_TILE)
    assert result.exit_code == 1
    assert result.stdout.startswith("wrong: worst error")
    assert "0 hazards" in result.stdout


def test_a_gpu_that_cannot(run: Callable[..., Result], card: Card) -> None:
    """Asked for, it is an error with the way out; else the interpreter runs."""
    result = run("simt", "--backend", "gpu")
    assert result.exit_code == 2
    assert "this machine has none; give --backend interpreter" in result.stderr
    card.arch()
    result = run("blackwell", "--backend", "gpu")
    assert result.exit_code == 2
    assert "sm_90a, and kernels of blackwell need tcgen05.alloc, which" in result.stderr
    assert "sm_90a, and kernels of blackwell" in run("blackwell").stdout


def test_a_gpu_that_can_is_taken(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, card: Card
) -> None:
    """By default, and not if the interpreter is asked for."""
    asked = []

    def measured(given: Any, seed: int, scalars: Any) -> dict[str, Any]:
        asked.append((given.problem.sizes["m"], seed))
        return {"right": True, "text": "measured"}

    card.arch()
    monkeypatch.setattr("tinygpu.cli.code._on_gpu", measured)
    assert run("hopper", "--seed", 2).stdout.startswith("measured\n")
    assert run("hopper", "--backend", "gpu", "-m", 512).stdout.startswith("measured\n")
    assert asked == [(4096, 2), (512, 0)]
    told = run("hopper", "--backend", "interpreter").stdout
    assert "no run on a GPU: it was not asked for" in told
