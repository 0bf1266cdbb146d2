"""The pictures and the demo's report: files that open, tell the truth and lack nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.patches import Rectangle
from typer.testing import CliRunner

from tests.sample import all_by_turns
from tests.test_cli import FIX, tinygpu
from tinygpu.cli import app
from tinygpu.cli.layout_picture import layout_figure
from tinygpu.cli.pictures import Point, measured_figure, png, times_figure
from tinygpu.devices.device import load_device
from tinygpu.errors import ScheduleError
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.search.exact.best import Ranked
from tinygpu.search.store import Store
from tinygpu.search.time.cost import cost
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


def ranked(name: str) -> Ranked:
    schedule = Schedule.of(Simt(), LADDER[name])
    found = cost(schedule.program(Simt(), matmul()), PROBLEM.sizes, H200)
    return Ranked(float(found.seconds), schedule, found)


def texts(figure: Figure, panel: int) -> dict[tuple[int, int], str]:
    """What a panel of numbers shows at (row, column)."""
    places = [(t.get_position(), t.get_text()) for t in figure.axes[panel].texts]
    return {(int(y), int(x)): text for (x, y), text in places}


@pytest.fixture(scope="module")
def shared_term() -> Program:
    return term("multi-stage")


def test_a_layout_shows_the_bank_of_each_element(shared_term: Program) -> None:
    """Bank and writer, against the buffer's own layout and the term's own loop over threads."""
    figure = layout_figure(shared_term, "smem_a")
    buffer = next(b for b in shared_term.buffers if b.name == "smem_a")
    shown = texts(figure, 0)
    assert shown[0, 5] == "5"
    for (column, row), bank in shown.items():  # k, then rows of a, which are contiguous
        assert int(bank) == int(buffer.layout((column, row))) % BANKS
    owners = texts(figure, 1)
    assert owners[0, 0] == owners[3, 0] == "0"  # a vector of 4 along k
    assert owners[4, 0] == "1"


@pytest.mark.parametrize(("pad", "waves"), [(0, 4), (4, 1)])
def test_a_layout_tells_the_conflicts(pad: int, waves: int) -> None:
    """Four rows of k-contiguous a fall on one bank without a pad, and on four with one."""
    figure = layout_figure(term("shared", thread_m=4, tile_k=32, lanes_m=4, pad_a=pad), "smem_a")
    assert f"{waves} wavefront" in figure.axes[2].get_title(loc="left")
    lanes = np.repeat(np.arange(4), 8) * (32 + pad) * 4
    assert bank_wavefronts(lanes, 4) == waves


def test_a_layout_for_tma_shows_its_swizzle() -> None:
    """Eight rows of 128 B: a column of pieces meets each group of banks once, a row too."""
    program = Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS["ring"]))
    shown = texts(layout_figure(program, "smem_a"), 0)
    assert [int(shown[3, piece]) for piece in range(8)] == [3 ^ piece for piece in range(8)]
    for piece in range(8):
        assert {int(shown[row, piece]) for row in range(8)} == set(range(8))


def test_a_layout_has_to_be_in_shared_memory(shared_term: Program) -> None:
    with pytest.raises(ScheduleError, match="did you mean smem_a"):
        layout_figure(shared_term, "smen_a")
    with pytest.raises(ScheduleError, match="a_from or b_from"):
        layout_figure(term("naive"))


def test_times_show_every_schedule_and_its_bottleneck() -> None:
    best = [ranked("multi-stage"), ranked("naive")]
    axes = times_figure(best, "times").axes[0]
    scale = {"ms": 1e3, "us": 1e6}[axes.get_xlabel().removeprefix("predicted time [").rstrip("]")]
    widths = [patch.get_width() for patch in axes.patches if isinstance(patch, Rectangle)]
    assert widths == pytest.approx([one.seconds * scale for one in best])
    ringed = [line for line in axes.lines if line.get_markeredgecolor() == "black"]
    assert len(ringed) == 2
    header = next(t.get_text() for t in axes.texts if t.get_text().endswith("#"))
    assert header.split() == ["tile_m", "tile_n", "tile_k", "thread_m", "thread_n", "#"]
    names = [label.get_text().split() for label in axes.get_yticklabels()]
    assert names == [["128", "128", "16", "8", "8", "1"], ["32", "32", "1", "1", "1", "2"]]


def test_measured_counts_what_is_within_15_percent() -> None:
    pairs = (1.0, 1.14), (1.0, 1.16), (2.0, 1.0)
    figure = measured_figure([Point(*pair, "simt", "a matmul") for pair in pairs], "title")
    assert "1 of 3 within 15 %" in figure.get_suptitle()
    assert png(figure)[:4] == b"\x89PNG"


@all_by_turns(
    ("machine", [Simt(), Hopper()]),
    ("picture", ["layout", "timeline", "times"]),
)
def test_plot_commands_write_pictures(picture: str, machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    simt = machine.name == "simt"
    schedule = Schedule.of(machine, LADDER["multi-stage"] if simt else STARTS["pingpong"])
    problem = PROBLEM if simt else Problem.of(matmul("bf16", layout="nt"), **PROBLEM.sizes)
    path.write_text(to_json(schedule, problem))
    result = CliRunner().invoke(app, ["plot", picture, str(path)])
    assert result.exit_code == 0, result.output
    image = imread(tmp_path / f"one.{picture}.png")
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
