"""Measuring on several GPUs: a local cluster of workers with a GPU that does not exist."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tinygpu.cli import app
from tinygpu.codegen.run.measure import Options
from tinygpu.errors import LaunchError
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.search.store import Store
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.program import Program
from tinygpu.term.schedule import Schedule

pytest.importorskip("distributed", reason="dask is not installed (pip install .[dask])")
pytestmark = pytest.mark.filterwarnings("default")  # dask's own, of sockets and of deprecations

from tinygpu.codegen.run.fleet import FleetCampaign, fleet  # noqa: E402

PROBLEM = Problem.of(matmul(), m=64, n=64, k=64)
RASTERS = (1, 2, 4, 8, 16)
FAKE = """
import json, os, sys, time
from tinygpu.codegen.run.worker import serve

GPU = os.environ["CUDA_VISIBLE_DEVICES"]
SLOWER = {"0": 1.0, "1": 1.25, "2": 0.9}[GPU]

def handle(request):
    if request["do"] == "hello":
        device = "other" if MIXED and GPU == "1" else "fake"
        return {"arch": "sm_90a", "device": device, "driver": "1"}
    if request["do"] == "peers":
        return {"names": ["one"]}
    if request["do"] == "validate":
        decisions = json.loads(request["name"]).get("decisions", {})
        return {"error": 9.0 if decisions.get("raster") == 4 else 0.5}
    with open(LOG, "a") as log:
        log.write(json.dumps([GPU, os.getppid(), sorted(request["kernels"])]) + "\\n")
    time.sleep(SLEEP)
    took = {name: SLOWER * 1e-3 * json.loads(name)["decisions"]["raster"]
            for name in request["kernels"]} | {name: 5e-4 * SLOWER for name in request["peers"]}
    return {"timings": {name: dict(seconds=seconds, spread=0.1, rounds=3, clock_mhz=1, capped=False,
                                   error=0.5) for name, seconds in took.items()}}

serve(handle)
"""


def options(folder: Path, sleep: float = 0.0, mixed: bool = False) -> Options:
    head = f"LOG, SLEEP, MIXED = {str(folder / 'log')!r}, {sleep}, {mixed}\n"
    return Options(worker=(sys.executable, "-c", head + FAKE), limit_seconds=30.0, batch=2)


def programs() -> dict[Schedule, Program]:
    schedules = [
        Schedule.of(Simt(), {**LADDER["tuned"], "raster": raster, "ctas_per_sm": ctas})
        for raster in RASTERS
        for ctas in (1, 2)
    ]
    return {one: one.program(Simt(), PROBLEM.operation) for one in schedules}


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with fleet(gpus=("0", "1")) as one:
        one.wait_for_workers(2, timeout=120)
        yield one


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> str:
    """An address at which nobody answers, for which nobody waits long."""
    monkeypatch.setattr("tinygpu.codegen.run.fleet._ANSWER", "1s")
    return "tcp://127.0.0.1:1"


def log(folder: Path) -> list[tuple[str, int, list[str]]]:
    path = folder / "log"
    return (
        [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []
    )


def test_all_gpus_measure_and_their_times_agree(client: Any, tmp_path: Path) -> None:
    """A GPU that is a quarter slower gives the same seconds; each candidate is timed once."""
    every = programs()
    with Store(tmp_path / "s.db") as store:
        with FleetCampaign(
            PROBLEM, client, store=store, options=options(tmp_path, 0.3)
        ) as campaign:
            found = campaign.measure(every)
            assert len(store) == len(every)
            assert campaign.measure(every) == found  # from the store
        base = found[0].seconds
        assert base is not None
        for schedule, one in zip(every, found, strict=True):
            if schedule["raster"] == 4:
                assert "it is wrong" in one.reason
            else:
                assert one.seconds == pytest.approx(base * int(schedule["raster"]))
    timed = log(tmp_path)
    assert {gpu for gpu, *_ in timed} == {"0", "1"}
    counts = Counter(name for *_, names in timed for name in names)
    reference, _ = counts.most_common(1)[0]
    assert {count for name, count in counts.items() if name != reference} == {1}


def test_what_was_measured_is_measured_again_without_a_store(client: Any, tmp_path: Path) -> None:
    """The reference among them: asked for with others, and alone."""
    every = programs()
    with FleetCampaign(PROBLEM, client, options=options(tmp_path)) as campaign:
        first, *_ = campaign.measure(dict(list(every.items())[:1]))
        again = campaign.measure(every)
        alone = campaign.measure(dict(list(every.items())[:1]))
    assert first.ok
    assert [again[0].seconds, alone[0].seconds] == pytest.approx([first.seconds] * 2)
    assert len(again) == len(every)


def test_a_fleet_of_this_host_is_silent() -> None:
    """What dask notes of its workers' start and end is of no use to who searches."""
    script = "from tinygpu.codegen.run.fleet import fleet\nwith fleet(gpus=['0']) as client:\n"
    script += "    client.wait_for_workers(1)"
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert (told.stdout, told.stderr) == ("", "")


def test_finals_run_on_one_gpu(client: Any, tmp_path: Path) -> None:
    """What is compared is timed together, beside the peers, and is not kept."""
    some = dict(list(programs().items())[:3])
    with (
        Store(tmp_path / "s.db") as store,
        FleetCampaign(PROBLEM, client, store=store, options=options(tmp_path)) as campaign,
    ):
        names = campaign.peers("some.module")
        assert names == ("some.module:one",)
        found = campaign.measure(some, names, anew=True)
        assert len(store) == 0
    assert len({gpu for gpu, *_ in log(tmp_path)}) == 1
    assert [one.ok for one in found] == [True] * 4


def test_a_lost_worker_loses_nothing(tmp_path: Path) -> None:
    """Workers are killed while they time; their candidates are measured elsewhere, once each."""
    every = programs()
    killed: list[int] = []

    def kill() -> None:
        end = time.monotonic() + 60
        while len(killed) < 2 and time.monotonic() < end:
            fresh = [pid for _, pid, names in log(tmp_path) if len(names) > 1 and pid not in killed]
            if fresh:
                killed.append(fresh[-1])
                os.kill(fresh[-1], signal.SIGKILL)
                time.sleep(1.5)
            time.sleep(0.05)

    with fleet(gpus=("0", "1")) as client, Store(tmp_path / "s.db") as store:
        client.wait_for_workers(2, timeout=120)
        with FleetCampaign(
            PROBLEM, client, store=store, options=options(tmp_path, 1.0)
        ) as campaign:
            killer = threading.Thread(target=kill)
            killer.start()
            found = campaign.measure(every)
            killer.join()
        assert len(killed) == 2
        assert len(store) == len(every) == len({one.schedule for one in found})
        for schedule, one in zip(every, found, strict=True):
            right = schedule["raster"] != 4
            assert one.ok == right, one.reason
            if right and one.seconds and found[0].seconds:
                assert one.seconds == pytest.approx(found[0].seconds * int(schedule["raster"]))


def test_what_cannot_be_a_fleet_is_one_error(client: Any, nobody: str, tmp_path: Path) -> None:
    with (
        pytest.raises(LaunchError, match="workers differ"),
        FleetCampaign(PROBLEM, client, options=options(tmp_path, mixed=True)),
    ):
        pass
    with pytest.raises(LaunchError, match="give its address"), fleet(nobody):
        pass


def test_the_command_says_at_once_that_nobody_answers(nobody: str, tmp_path: Path) -> None:
    words = ["search", "matmul", "-m", "64", "-n", "64", "-k", "64", "--out", str(tmp_path)]
    address = ["--scheduler", nobody]
    result = CliRunner().invoke(app, [*words, "--measure", *address])
    assert result.exit_code == 2
    assert "give its address" in result.output
    assert len(result.output.splitlines()) == 1
    assert not list(tmp_path.iterdir())
    result = CliRunner().invoke(app, [*words, *address])
    assert (result.exit_code, "give --measure" in result.output) == (2, True)
