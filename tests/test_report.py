"""The pictures and the demo's report: files that open, tell the truth and lack nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from tests.test_cli import FIX, tinygpu
from tinygpu.cli import app
from tinygpu.cli.layouts import layouts
from tinygpu.cli.pictures import Point, encoded, measured_figure
from tinygpu.devices.device import load_device
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.search.store import Store
from tinygpu.space.measurement import Measurement, describe
from tinygpu.term.access import BANKS, bank_wavefronts
from tinygpu.term.machine import Chosen, Machine
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.program import Program
from tinygpu.term.schedule import Schedule, to_json

H200 = load_device("h200")
PROBLEM = Problem.of(matmul(), m=512, n=512, k=512)
SHORT = ["demo", "--tokens", "128", "--layer", "o", "--top", "2", "--no-measure"]
SIMT = [*SHORT, "--machine", "simt", "--layout", "nn", *FIX]
HOPPER = [*SHORT, "--fix", "tile_n=64,128", "--fix", "stages=2", "--fix", "persistent=0"]


def term(name: str, **changes: Any) -> Program:
    return Simt().program(matmul(), Chosen({**LADDER[name], **changes}))


def shown(program: Program) -> list[Any]:
    """What the page has of smem_a: its panels, each the text and the numbers."""
    tree = next(one for one in layouts(program) if one["title"].startswith("smem_a:"))
    return [(panel["text"], np.array(panel["cells"])) for panel in tree["panels"]]


@pytest.fixture(scope="module")
def shared_term() -> Program:
    return term("multi-stage")


def test_a_layout_shows_the_bank_of_each_element(shared_term: Program) -> None:
    """Bank and writer, against the buffer's own layout and the term's own loop over threads."""
    (_, banks), (_, owners), *_ = shown(shared_term)
    buffer = next(b for b in shared_term.buffers if b.name == "smem_a")
    assert banks[0, 5] == 5
    for (column, row), bank in np.ndenumerate(banks):  # k, then rows of a, which are contiguous
        assert bank == int(buffer.layout((column, row))) % BANKS
    assert owners[0, 0] == owners[3, 0] == 0  # a vector of 4 along k
    assert owners[4, 0] == 1


@pytest.mark.parametrize(("pad", "waves"), [(0, 4), (4, 1)])
def test_a_layout_tells_the_conflicts(pad: int, waves: int) -> None:
    """Four rows of k-contiguous a fall on one bank without a pad, and on four with one."""
    panels = shown(term("shared", thread_m=4, tile_k=32, lanes_m=4, pad_a=pad))
    assert f"{waves} wavefront" in panels[2][0]
    lanes = np.repeat(np.arange(4), 8) * (32 + pad) * 4
    assert bank_wavefronts(lanes, 4) == waves


def test_a_layout_for_tma_shows_its_swizzle() -> None:
    """Eight rows of 128 B: a column of pieces meets each group of banks once, a row too."""
    program = Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS["ring"]))
    ((_, banks),) = shown(program)
    assert [int(banks[3, piece]) for piece in range(8)] == [3 ^ piece for piece in range(8)]
    for piece in range(8):
        assert set(banks[:8, piece].tolist()) == set(range(8))


def test_a_tile_that_is_not_in_shared_memory_is_not_shown() -> None:
    assert layouts(term("naive")) == []


def test_measured_counts_what_is_within_15_percent() -> None:
    pairs = (1.0, 1.14), (1.0, 1.16), (2.0, 1.0)
    figure = measured_figure([Point(*pair, "simt", "a matmul") for pair in pairs], "title")
    assert "1 of 3 within 15 %" in figure.get_suptitle()
    assert encoded(figure, "png")[:4] == b"\x89PNG"


@pytest.mark.parametrize("machine", [Simt(), Hopper()], ids=lambda one: str(one.name))
def test_plot_timeline_writes_a_picture(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    simt = machine.name == "simt"
    schedule = Schedule.of(machine, LADDER["multi-stage"] if simt else STARTS["pingpong"])
    problem = PROBLEM if simt else Problem.of(matmul("bf16", layout="nt"), **PROBLEM.sizes)
    path.write_text(to_json(schedule, problem))
    result = CliRunner().invoke(app, ["plot", "timeline", str(path)])
    assert result.exit_code == 0, result.output
    image = imread(tmp_path / "one.timeline.png")
    assert image.shape[0] > 200
    assert image.std() > 0.05  # not a blank page


def test_plot_timeline_writes_a_trace(tmp_path: Path) -> None:
    path, trace = tmp_path / "one.json", tmp_path / "trace.json"
    path.write_text(to_json(Schedule.of(Simt(), LADDER["multi-stage"]), PROBLEM))
    assert "perfetto" in tinygpu("plot", "timeline", path, "--trace", trace).stdout
    assert json.loads(trace.read_text())["traceEvents"]


def test_plot_measured_reads_a_store(tmp_path: Path) -> None:
    """Schedules are predicted anew from what the store says of them; peers are left out."""
    schedule = Schedule.of(Simt(), LADDER["multi-stage"])
    operation, sizes, chosen = describe(PROBLEM, schedule)

    def timed(schedule: str) -> Measurement:
        return Measurement(
            operation=operation, sizes=sizes, schedule=schedule, device="NVIDIA H200",
            driver="y",
            emitter=1, seconds=1e-4,
        )  # fmt: skip

    store = tmp_path / "store.db"
    with Store(store) as kept:
        kept.put(timed('{"peer":"a:b"}'))
    assert tinygpu("plot", "measured", store).exit_code == 2
    with Store(store) as kept:
        kept.put(timed(chosen))
    assert tinygpu("plot", "measured", store).exit_code == 0
    assert (tmp_path / "store.measured.png").exists()
