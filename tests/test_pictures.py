"""Pictures are readable: no text is cut or covered, what differs looks different, files are whole.

Every kind of picture is drawn for several inputs, and its text and legend are measured.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text
from numpy.typing import NDArray

from tests.sample import some
from tests.test_cli import complaint, tinygpu
from tinygpu.cli.given import Given
from tinygpu.cli.palette import COLOURS, COMPONENTS
from tinygpu.cli.pictures import Point, encoded, measured_figure
from tinygpu.cli.plot import drawn_timeline
from tinygpu.devices.device import DEVICES, device_of, load_device, names_gpu
from tinygpu.machines import MACHINES, ampere, blackwell, hopper, simt
from tinygpu.machines.file import machine_in
from tinygpu.search.exact.best import Ranked
from tinygpu.search.store import Store
from tinygpu.search.time.cost import cost
from tinygpu.search.time.timeline import timeline
from tinygpu.space.measurement import Measurement, canonical, describe
from tinygpu.term.operation import Operation, Problem, elementwise, matmul, rmsnorm, softmax
from tinygpu.term.schedule import Schedule, to_json

POINTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "simt": simt.LADDER,
    "ampere": ampere.STARTS,
    "hopper": hopper.STARTS,
    "blackwell": blackwell.STARTS,
}
CHIPS = {"blackwell": "b200"}
ROWS: Mapping[str, Any] = {
    "vector": 8, "chunks": 2, "warps": 16, "rows": 2, "teams": 1, "ctas": 264
}  # fmt: skip
LINES = {"vector": 4, "unroll": 8, "threads": 256, "ctas": 0}


def given(machine: str, name: str, k: int = 4096) -> Given:
    operation = matmul() if machine == "simt" else matmul("bf16", layout="nt")
    problem = Problem.of(operation, m=4096, n=4096, k=k)
    chosen = MACHINES[machine]
    schedule = Schedule.of(chosen, POINTS[machine][name])
    return Given(Path(), chosen, problem, schedule, load_device(CHIPS.get(machine, "h200")))


def rows(operation: Operation, **changes: Any) -> Given:
    machine = MACHINES["rows"]
    schedule = Schedule.of(machine, {**ROWS, **changes})
    problem = Problem.of(operation, i=4096, j=4096)
    return Given(Path(), machine, problem, schedule, load_device("h200"))


def norm(**changes: Any) -> Given:
    return rows(rmsnorm("bf16"), **changes)


def lines() -> Given:
    """A machine without shared memory."""
    machine, problem = MACHINES["elementwise"], Problem.of(elementwise("a*x + b"), i=1 << 20)
    return Given(Path(), machine, problem, Schedule.of(machine, LINES), load_device("h200"))


def program(one: Given) -> Any:
    return one.schedule.program(one.machine, one.problem.operation)


def ranked(*every: Given) -> list[Ranked]:
    costs = [cost(program(one), one.problem.sizes, one.device) for one in every]
    found = [Ranked(float(c.seconds), o.schedule, c) for c, o in zip(costs, every, strict=True)]
    return sorted(found, key=lambda one: one.seconds)


def texts_of(figure: Figure) -> list[Text]:
    """The text that is drawn: of ticks only those within their axis."""
    figure.draw_without_rendering()
    beyond = set()
    for axes in figure.axes:
        for axis, at in ((axes.xaxis, 0), (axes.yaxis, 1)):
            low, high = sorted(axis.get_view_interval())
            ticks = axis.get_ticklabels(minor=False) + axis.get_ticklabels(minor=True)
            beyond |= {t for t in ticks if not low <= t.get_position()[at] <= high}
    every = figure.findobj(Text)
    return [
        t
        for t in every
        if isinstance(t, Text) and t.get_text().strip() and t.get_visible() and t not in beyond
    ]


def require_legible(figure: Figure) -> None:
    """No text is cut, none covers another, no legend covers data, legend entries differ."""
    texts = texts_of(figure)
    boxes = np.array([text.get_window_extent().extents for text in texts])
    edge = np.array([0, 0, *figure.bbox.size])
    beyond = np.hstack([boxes[:, :2] < edge[:2] - 1, boxes[:, 2:] > edge[2:] + 1])
    assert [texts[i].get_text() for i in np.flatnonzero(beyond.any(axis=1))] == []
    low = np.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    covers = np.triu((high - low > 0.5).all(axis=2), 1)
    assert [(texts[i].get_text(), texts[j].get_text()) for i, j in np.argwhere(covers)] == []
    assert all(float(text.get_fontsize()) >= 6 for text in texts)
    for legend in (child for child in figure.findobj(Legend) if isinstance(child, Legend)):
        box = legend.get_window_extent()
        assert not any(box.overlaps(axes.get_window_extent()) for axes in figure.axes)
        looks = [look_of(handle) for handle in legend.legend_handles]
        assert len(set(looks)) == len(looks), looks


def look_of(handle: Any) -> tuple[Any, ...]:
    if isinstance(handle, Patch):
        return handle.get_facecolor(), handle.get_edgecolor(), handle.get_hatch()
    assert isinstance(handle, Line2D)
    return (
        handle.get_color(),
        handle.get_marker(),
        handle.get_linestyle(),
        str(handle.get_markerfacecolor()),
    )


TIMELINES = [
    given("simt", "multi-stage"),
    given("simt", "naive"),
    given("ampere", "ring"),
    given("ampere", "deep", 512),
    given("hopper", "plain"),
    given("hopper", "cluster"),
    given("hopper", "pingpong"),
    given("hopper", "swapped", 256),
    given("hopper", "shared k"),
    given("blackwell", "pair"),
    given("blackwell", "a in tmem", 512),
    norm(),
    rows(softmax("f32"), ctas=0),
    lines(),
]


@pytest.mark.parametrize("one", some(TIMELINES, 2), ids=lambda one: str(one.machine.name))
def test_a_timeline_is_legible(one: Given) -> None:
    term = program(one)
    for iterations in (3, 12) if one.problem.sizes.get("k") == 512 else (3,):
        line = timeline(term, one.problem.sizes, one.device, iterations=iterations)
        figure = drawn_timeline(line, term, one)
        require_legible(figure)
        names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
        assert names == list(line.rows)


def few_points() -> Figure:
    points = [Point(1e-3, 1e-3 * n, "hopper", "a matmul") for n in (1.0, 1.1)]
    return measured_figure(points, "title")


@pytest.mark.parametrize(
    ("span", "problems"), [(1.01, 1), (1.01, 30), (3, 3), (100, 12), (1e5, 30), (1e5, 1)]
)
def test_measured_times_are_legible(span: float, problems: int) -> None:
    """However far the times are apart, numbers on the axes do not collide."""
    random = np.random.default_rng(1)
    points, peers = [], []
    for number in range(problems):
        problem = f"matmul {4096 + number} x 4096 x 14336 bf16"
        for machine in ("simt", "ampere", "hopper", "machine_of_mine"):
            predicted = 3e-6 * span ** random.random()
            points.append(Point(predicted, predicted * random.uniform(0.8, 1.3), machine, problem))
        peers += [(problem, "cuBLAS", 3.1e-6), (problem, "PyTorch", 3.3e-6)]
    figure = measured_figure(
        points, "Predicted for h200, measured on NVIDIA H200, driver 580.159.04", peers=peers[:8]
    )
    require_legible(figure)
    axes = figure.axes[0]
    marks = [line for line in axes.lines if line.get_linestyle() == "None"]
    assert sum(len(np.asarray(line.get_xdata())) for line in marks) == len(points)
    looks = {(*look_of(line)[1:], line.get_markeredgecolor()) for line in marks}
    assert len(looks) >= min(len(marks), 4 * 20)
    for axis in (axes.xaxis, axes.yaxis):
        low, high = axis.get_view_interval()
        ticks = [tick for tick in axis.get_majorticklocs() if low <= tick <= high]
        assert 2 <= len(ticks) <= 9


# Machado et al., "A Physiologically-based Model for Simulation of Color Vision Deficiency", 2009
VISION = {
    "all": np.eye(3),
    "no red": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no green": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "no blue": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colour: str, vision: Any) -> NDArray[np.float64]:
    """CIE L*a*b* of what someone sees."""
    part = np.array(to_rgb(colour))
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    x = XYZ @ np.clip(np.asarray(vision) @ linear, 0, 1) / [0.9505, 1, 1.089]
    f = np.where(x > 0.008856, np.cbrt(x), 7.787 * x + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISION)
def test_colours_are_told_apart_without_colour_vision(vision: str) -> None:
    """A difference of 2.3 can just be noticed; these are six times as far apart, and from white."""
    seen = [lab(colour, VISION[vision]) for colour in (*COLOURS, "#ffffff")]
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2)) > 14


def test_components_are_told_apart() -> None:
    """By colour and mark all; by colour alone those of a program with barriers."""
    assert len(set(COMPONENTS.values())) == len(COMPONENTS)
    met: dict[str, set[str]] = {}
    for machine, points in POINTS.items():
        every = [ranked(given(machine, name))[0].breakdown.parts for name in points]
        met[machine] = {part for parts in every for part, share in parts.items() if share > 0}
        assert met[machine] <= COMPONENTS.keys()
    assert set(ranked(norm())[0].breakdown.parts) <= COMPONENTS.keys()
    for machine in ("hopper", "blackwell"):
        assert len({COMPONENTS[part][0] for part in met[machine]}) == len(met[machine])


@pytest.fixture
def written(tmp_path: Path) -> Path:
    one = given("hopper", "pingpong")
    path = tmp_path / "one.json"
    path.write_text(to_json(one.schedule, one.problem))
    return path


def test_a_machine_of_one_s_own_is_drawn(tmp_path: Path) -> None:
    file = Path(__file__).parent.parent / "examples" / "first_machine.py"
    own = ["--machine", f"{file}:Axpb"]
    machine = machine_in(own[1])
    path = tmp_path / "one.json"
    schedule = Schedule.of(machine, {"vector": 4, "threads": 256})
    path.write_text(to_json(schedule, Problem.of(elementwise("a*x + b"), i=1 << 20)))
    assert tinygpu("plot", "timeline", path, *own, "-o", tmp_path / "x.svg").exit_code == 0
    assert ">global memory<" in (tmp_path / "x.svg").read_text()


def test_the_ending_says_what_is_written(written: Path) -> None:
    """In SVG and PDF text is text."""
    word = "tensor cores"
    found = {}
    for ending in ("png", "SVG", "pdf"):
        path = written.with_suffix(f".{ending}")
        assert tinygpu("plot", "timeline", written, "-o", path).exit_code == 0
        found[ending] = path.read_bytes()
    assert found["png"].startswith(b"\x89PNG")
    assert re.search(rf"<text[^>]*>{word}", found["SVG"].decode())
    assert found["pdf"].startswith(b"%PDF")
    assert pdf_text(found["pdf"]).count(word) >= 1
    assert len(list(written.parent.iterdir())) == 4  # no part of a file is left


@pytest.mark.parametrize("form", ["png", "svg", "pdf"])
def test_equal_figures_are_equal_files(form: str) -> None:
    one, other = (encoded(few_points(), form) for _ in range(2))
    assert one == other


def pdf_text(data: bytes) -> str:
    """The text that a PDF's pages show, two bytes a character."""
    shown = ""
    for part in re.findall(rb"stream\r?\n(.*?)endstream", data, re.DOTALL):
        try:
            page = zlib.decompress(part)
        except zlib.error:
            continue
        for strings in re.findall(rb"\[(.*?)\]\s*TJ", page, re.DOTALL):
            parts = re.findall(rb"\(((?:\\.|[^\\)])*)\)", strings, re.DOTALL)
            text = re.sub(rb"\\(.)", rb"\1", b"".join(parts), flags=re.DOTALL)
            shown += text.decode("utf-16-be", errors="replace")
    return shown


@pytest.mark.parametrize("name", ["x.gif", "x", ".", "x.png.gz"])
@pytest.mark.parametrize("kind", ["timeline", "measured"])
def test_another_ending_is_refused(kind: str, name: str, written: Path) -> None:
    line = complaint(tinygpu("plot", kind, written, "-o", written.parent / name))
    assert ".png" in line
    assert ".svg" in line
    assert ".pdf" in line
    assert list(written.parent.iterdir()) == [written]


def measurement(
    one: Given, seconds: float, *, peer: str = "", device: str = "NVIDIA H200"
) -> Measurement:
    operation, sizes, schedule = describe(one.problem, one.schedule)
    schedule = canonical({"peer": peer}) if peer else schedule
    return Measurement(
        operation=operation, sizes=sizes, schedule=schedule, device=device, driver="580.1",
        emitter=1, seconds=seconds,
    )  # fmt: skip


PEERS = (
    *("tinygpu.codegen.run.cublaslt:algorithm_0", "tinygpu.codegen.run.cublaslt:algorithm_1"),
    *("benchmarks.peers:torch_matmul", "mine:other"),
)


def synthetic(path: Path, *, device: str = "NVIDIA H200", noise: float = 0.1) -> Path:
    """A store of measurements near the predictions: three machines, two problems, a peer."""
    random = np.random.default_rng(0)
    with Store(path) as kept:
        for machine, k in product(("ampere", "hopper"), (4096, 512)):
            for name in POINTS[machine]:
                if name == "parts of k":
                    continue
                one = given(machine, name, k)
                seconds = float(ranked(one)[0].seconds) * float(np.exp(noise * random.normal()))
                kept.put(measurement(one, seconds, device=device))
            for number, peer in enumerate(PEERS):
                seconds = 2e-7 * k**0.8 * (2 - number / 10)
                kept.put(measurement(one, seconds, peer=peer, device=device))
    return path


def test_measured_times_have_the_colour_of_their_problem(tmp_path: Path) -> None:
    store = synthetic(tmp_path / "store.db")
    assert tinygpu("plot", "measured", store, "-o", tmp_path / "x.svg").exit_code == 0
    text = (tmp_path / "x.svg").read_text()
    problem = "matmul 4096 x 4096 x 512 bf16"
    for word in ("ampere", "hopper", "cuBLAS", "PyTorch", "other", "within 15 %", problem,
                 "Predicted for h200, measured on NVIDIA H200, driver 580.1"):  # fmt: skip
        assert f">{word}<" in text
    with Store(store) as kept:
        same = Problem.of(matmul("bf16", layout="nn"), m=4096, n=4096, k=512)
        kept.put(measurement(replace(given("hopper", "ring"), problem=same), 1e-4))
    assert tinygpu("plot", "measured", store, "-o", tmp_path / "x.svg").exit_code == 0
    assert "512 bf16, a[m,k] bf16, b[k,n] bf16" in (tmp_path / "x.svg").read_text()


def test_of_a_library_the_fastest_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given_peers: list[tuple[str, str, float]] = []

    def drawn(*words: Any, peers: Any) -> Figure:
        given_peers.extend(peers)
        return measured_figure(*words, peers=peers)

    monkeypatch.setattr("tinygpu.cli.pictures.measured_figure", drawn)
    assert tinygpu("plot", "measured", synthetic(tmp_path / "store.db")).exit_code == 0
    found = {name: seconds for problem, name, seconds in given_peers if " 512 " in problem}
    assert len(given_peers) == 2 * len(found)
    assert list(found) == ["PyTorch", "other", "cuBLAS"]
    assert found["cuBLAS"] == pytest.approx(2e-7 * 512**0.8 * 1.9)


def test_measurements_of_another_gpu_are_refused(tmp_path: Path) -> None:
    """The line says which device fits; a device's own file is taken at its word."""
    store = synthetic(tmp_path / "store.db")
    line = complaint(tinygpu("plot", "measured", store, "--device", "a100"))
    assert "measured on NVIDIA H200, not on a100; give --device h200" in line
    with Store(store) as kept:
        kept.put(measurement(given("hopper", "ring"), 1e-4, device="NVIDIA A100-SXM4-80GB"))
    shown = tinygpu("plot", "measured", store)
    assert "left out: 1, measured on another GPU than h200" in shown.stdout
    device = tmp_path / "mine.json"
    device.write_text((Path("tinygpu/devices/a100.json")).read_text())
    assert tinygpu("plot", "measured", store, "--device", device).exit_code == 0
    other = synthetic(tmp_path / "other.db", device="NVIDIA L4")
    assert "tinygpu calibrate" in complaint(tinygpu("plot", "measured", other))


def test_schedules_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    """Of a machine that is not there, say: with a word."""
    store = synthetic(tmp_path / "store.db")
    one = measurement(given("hopper", "ring"), 1e-4)
    with Store(store) as kept:
        kept.put(replace(one, schedule=one.schedule.replace('"hopper"', '"mine"')))
    shown = tinygpu("plot", "measured", store)
    assert shown.exit_code == 0
    assert "left out: 1, machine mine: known are" in shown.stdout


@pytest.mark.parametrize(
    ("gpu", "device"),
    [("NVIDIA H200", "h200"), ("NVIDIA A100-SXM4-80GB", "a100"), ("NVIDIA B200", "b200"),
     ("NVIDIA GeForce RTX 3060", "rtx3060"), ("NVIDIA H100 80GB HBM3", "h100"),
     ("NVIDIA H100 PCIe", "h100_pcie"), ("NVIDIA GH200 480GB", "gh200"), ("NVIDIA L40S", "l40s"),
     ("NVIDIA GeForce RTX 4090", "rtx4090"), ("NVIDIA GeForce RTX 5090", "rtx5090"),
     ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx_pro_6000"),
     ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx_pro_6000"),
     ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", ""), ("NVIDIA H100 NVL", ""),
     ("NVIDIA H200 NVL", ""), ("NVIDIA GH200 144G HBM3e", ""), ("NVIDIA L40", ""),
     ("NVIDIA GeForce RTX 4090 D", ""), ("NVIDIA GeForce RTX 4090 Laptop GPU", ""),
     ("NVIDIA GeForce RTX 3060 Ti", ""), ("NVIDIA RTX 6000 Ada Generation", ""),
     ("NVIDIA A100-PCIE-40GB", ""), ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", ""),
     ("none", "")],
)  # fmt: skip
def test_a_device_is_known_by_the_driver_s_name(gpu: str, device: str) -> None:
    assert [name for name in DEVICES if names_gpu(name, gpu)] == [device] * bool(device)
    assert device_of(gpu) == device


def test_what_is_not_legible_is_seen() -> None:
    """The checks of this file fail where text is cut, covered or looks alike."""
    figure = few_points()
    figure.axes[0].set_xticks([100, 101], ["hundred", "hundred one"])
    with pytest.raises(AssertionError, match="hundred one"):
        require_legible(figure)
    figure = few_points()
    figure.text(-0.01, 0.5, "cut", rotation=90)
    with pytest.raises(AssertionError, match="cut"):
        require_legible(figure)
    figure = few_points()
    figure.axes[0].legend(handles=[Line2D([], [], label="over data")])
    with pytest.raises(AssertionError):
        require_legible(figure)
    assert encoded(figure, "png")
