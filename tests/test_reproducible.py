"""Reproducible: every kernel adds along k in one order, so that no m changes a result's bits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from tests.sample import SHARED, draws
from tests.test_dispatch import Here
from tests.test_dispatch import few as machine_of_few
from tinygpu.cli import app
from tinygpu.cli.given import in_order
from tinygpu.codegen.emit import emit
from tinygpu.codegen.emulator import Module
from tinygpu.codegen.run.interpretation import execute
from tinygpu.devices.device import load_device
from tinygpu.errors import ScheduleError
from tinygpu.isa.memory import DTYPES
from tinygpu.machines import MACHINES, ampere
from tinygpu.search.tuning import dispatching
from tinygpu.space.space import Space
from tinygpu.term.machine import Machine, Value
from tinygpu.term.operation import Operation, Problem, matmul
from tinygpu.term.schedule import Schedule

SIZES = {"m": 40, "n": 40, "k": 136}
WIDE = matmul("bf16", "f32", "nt")
CASES: Mapping[str, tuple[Operation, str, str, str]] = {
    "simt": (matmul(), "h200", "sm_90a", "split_k"),
    "ampere": (WIDE, "h200", "sm_80", "split_k"),
    "hopper": (WIDE, "h200", "sm_90a", "cluster_k"),
    "blackwell": (WIDE, "b200", "sm_100a", ""),
}
"""An operation with f32 sums, a device, an architecture, and the decision that shares out k."""


PART: dict[str, Mapping[str, object]] = {"simt": SHARED}


def result(name: str, schedule: Schedule, sizes: Mapping[str, int] = SIZES) -> np.ndarray:
    """Return what the code of a schedule computes of the same rows, by the PTX interpreter."""
    operation, _, arch, _ = CASES[name]
    program, rng = schedule.program(MACHINES[name], operation), np.random.default_rng(0)
    shapes = operation.shapes(SIZES)
    drawn = [rng.standard_normal(shapes[o.name]) for o in operation.inputs]
    a, b = (DTYPES[o.dtype].round(x) for o, x in zip(operation.inputs, drawn, strict=True))
    c = np.zeros((sizes["m"], sizes["n"]), np.float32)
    arrays = {"a": np.ascontiguousarray(a[: sizes["m"]]), "b": b, "c": c}
    module = Module.parse(emit(program, arch, sizes, unchecked=True))
    assert execute(program, sizes, arrays, module).findings == ()
    return c


def drawn(name: str, fixed: Mapping[str, object], count: int) -> list[Schedule]:
    operation, device, _, _ = CASES[name]
    values = {decision: (value,) for decision, value in {**PART.get(name, {}), **fixed}.items()}
    space = Space(MACHINES[name], Problem.of(operation, **SIZES), load_device(device), fixed=values)  # type: ignore[arg-type]
    return list(space.sample(np.random.default_rng(1), count))


@pytest.mark.parametrize("name", CASES)
def test_in_order_is_one_result_for_all_schedules_and_every_m(name: str) -> None:
    """Bit by bit: tiles, stages, clusters, swaps; and the first rows of fewer rows."""
    fixed = MACHINES[name].in_order
    assert fixed is not None
    first, *others = drawn(name, fixed, draws(2, 4))
    wanted = result(name, first)
    for schedule in others:
        assert (result(name, schedule) == wanted).all(), schedule
    few = result(name, others[0], {**SIZES, "m": 16})
    assert (few == wanted[:16]).all()
    if shares := CASES[name][3]:
        values = [v for v in MACHINES[name].decisions()[shares].values if v != 1]
        (split,) = drawn(name, {**fixed, **_open(name, shares), shares: values[0]}, 1)
        assert (result(name, split) != wanted).any()


def _open(name: str, shares: str) -> dict[str, object]:
    """Return what a schedule whose CTAs share k needs besides."""
    return {"combine": "red"} if "combine" in MACHINES[name].decisions() else {}


def test_what_cannot_be_in_order_is_refused() -> None:
    class Silent(type(MACHINES["simt"])):  # type: ignore[misc]
        in_order = None

    simt, hopper = MACHINES["simt"], MACHINES["hopper"]
    every: list[tuple[dict[Machine, dict[str, tuple[object, ...]]], str]] = [
        ({simt: {}, hopper: {}}, "simt, hopper add in orders of their own"),
        ({Silent(): {}}, "does not say what the order"),
        ({hopper: {"cluster_k": (2, 4)}}, "leave out --fix cluster_k=2,4"),
    ]
    for fixed, told in every:
        with pytest.raises(ScheduleError, match=told):
            in_order(fixed)  # type: ignore[arg-type]
    assert in_order({hopper: {"cluster_k": (1, 2), "early": (1,)}}) == {
        hopper: {"cluster_k": (1,), "early": (1,)}
    }


def tinygpu(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.usefixtures("believed")
def test_a_search_finds_none_that_shares_k(tmp_path: Path) -> None:
    """Where the model would: few rows and columns, and a long k."""
    words = ["search", "matmul", "--dtype", "bf16", "--layout", "nt", "-m", 16, "-n", 512, "-k",
             16384, "--machine", "hopper", "--climb", "--top", 4, "--json",
             "--fix", "tile_m=64", "--fix", "tile_n=16,32", "--fix", "tile_k=64"]  # fmt: skip
    plain, ordered = tinygpu(*words), tinygpu(*words, "--reproducible")
    assert (plain.exit_code, ordered.exit_code) == (0, 0), ordered.output
    shared = [row["decisions"]["cluster_k"] for row in json.loads(plain.stdout)["best"]]
    assert max(shared) > 1
    rows = json.loads(ordered.stdout)["best"]
    assert {row["decisions"]["cluster_k"] for row in rows} == {1}
    refused = tinygpu(*words, "--reproducible", "--fix", "cluster_k=4")
    assert (refused.exit_code, "cluster_k=1" in refused.stderr) == (2, True)


@pytest.mark.usefixtures("believed")
def test_the_kernels_of_a_bundle_add_in_one_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said in the bundle; several machines are refused."""
    words = ["dispatch", "matmul", "-m", "1:256", "-n", 256, "-k", 4096, "--points", 3,
             "--dtype", "bf16", "--no-measure", "--kernels", 2, "--out", tmp_path / "b",
             "--reproducible"]  # fmt: skip
    few: dict[str, tuple[Value, ...]]
    few = {name: (value,) for name, value in ampere.STARTS["ring"].items()}
    few |= {"split_k": (1, 4), "combine": ("st", "red"), "tile_m": (64, 128), "tile_n": (64, 128)}
    monkeypatch.setitem(MACHINES, "ampere", machine_of_few(ampere.Ampere, few))
    monkeypatch.setattr(dispatching, "Fleet", Here)
    refused = tinygpu(*words)
    assert (refused.exit_code, "name one by --machine" in refused.stderr) == (2, True)
    made = tinygpu(*words, "--machine", "ampere")
    assert made.exit_code == 0, made.output
    assert json.loads((tmp_path / "b" / "bundle.json").read_text())["reproducible"] is True
    for file in (tmp_path / "b" / "schedules").iterdir():
        assert json.loads(file.read_text())["decisions"]["split_k"] == 1
    assert tinygpu("which", tmp_path / "b", "-m", 16).exit_code == 0
