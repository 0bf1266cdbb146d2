"""``plot bundle`` draws the numbers of a bundle, names every interval, and is legible.

The bundles are of times that are made up: no kernel is built and none is measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sample import by_turns
from tests.test_cli import complaint, tinygpu
from tests.test_pictures import require_legible
from tinygpu.cli.bundle_picture import MOST_PANELS, bundle_figure, panels_of, seen_in, spaced
from tinygpu.cli.console import json_text
from tinygpu.cli.shapes import LAYERS, sampled
from tinygpu.codegen.run.arguments import contract_of
from tinygpu.codegen.runtime.bundle import BUNDLE_FORMAT, Bundle, digest, load_bundle, sealed
from tinygpu.machines import MACHINES
from tinygpu.machines.simt import LADDER
from tinygpu.search.tuning.shape import matmul_shape
from tinygpu.term.operation import matmul
from tinygpu.term.schedule import Schedule

FOUR = tuple((name, n, k) for name, (_, n, k) in LAYERS.items())
ONE = (("", 4096, 4096),)
RULES = ("measured", "nearest", "round up")
CONTRACT = contract_of(
    Schedule.of(MACHINES["simt"], LADDER["naive"]).program(MACHINES["simt"], matmul())
).tree()


def tree_of(
    layers: Sequence[tuple[str, int, int]] = ONE,
    kernels: int = 5,
    m: Sequence[int] = tuple(sampled(1, 8192, 24)),
    *,
    seen: str = "scored",
) -> dict[str, Any]:
    """A bundle's manifest: kernel j is best at the j-th of sizes that lie evenly by logarithm."""
    random = np.random.default_rng(len(layers) * kernels)
    shapes = [matmul_shape(x, n, k, 1.0, name) for name, n, k in layers for x in m]
    hints = np.geomspace(min(m), max(m), kernels)
    far = np.abs(np.log2(np.array([s.size for s in shapes])[:, None] / hints))
    times = 1e-5 * (1 + 0.1 * far) * random.uniform(1, 1.02, far.shape)
    served = times.argmin(axis=1)
    rows = []
    for i, shape in enumerate(shapes):
        here = [None if j and far[i, j] > 12 else float(t) for j, t in enumerate(times[i])]
        row = {**shape.sizes, "weight": 1.0, "layer": shape.layer, "kernel": int(served[i])}
        row |= {"predicted": here, "measured": [] if seen == "predicted" else here}
        row |= {"best": float(0.98 * times[i].min())}
        if seen == "scored":
            again = [t and t * random.uniform(1, 1.01) for t in here]
            row |= {"scored": again, "scored_best": 0.97 * min(filter(None, again))}
            row |= {"peer": "of cuBLASLt", "peer_seconds": 1.1 * again[served[i]]}
        rows.append(row)
    tables: dict[str, list[dict[str, Any]]] = {}
    for number, rule in enumerate(RULES):
        tables[rule] = []
        for at in dict.fromkeys(s.at for s in shapes):
            mine = [int(served[i]) for i, s in enumerate(shapes) if s.at == at]
            mine = [min(kernels - 1, kernel + (number == 2)) for kernel in mine]
            tables[rule].append({"at": list(at), "upto": list(m), "kernels": mine})
    on = None if seen == "predicted" else {"device": "NVIDIA H200", "driver": "580.1"}
    return {
        "format": BUNDLE_FORMAT,
        "operation": str(matmul("bf16", layout="nt")),
        "device": "h200",
        "arch": "sm_90a",
        "measured_on": on,
        "along": "m",
        "axes": ["m", "n", "k"],
        "rule": "measured",
        "rules": tables,
        "shapes": rows,
        "kernels": [
            {"name": f"k{j:02}", "machine": "simt", "contract": CONTRACT, "cubin": "code"}
            for j in range(kernels)
        ],
        "files": {"code": digest(b"")},
    }


def opened(tree: dict[str, Any], rule: str = "measured") -> Bundle:
    return Bundle(tree, {"code": b""}, rule, None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bundle in a folder."""
    path = tmp_path / "linear"
    path.mkdir()
    (path / "bundle.json").write_text(json_text(sealed(tree_of())))
    (path / "code").write_bytes(b"")
    return path


def lines_of(figure: Any, label: str) -> list[Any]:
    return [axes for axes in figure.axes if axes.get_ylabel().replace("\n", " ") == label]


@pytest.mark.parametrize("seen", ["scored", "measured", "predicted"])
def test_the_best_times_there_are_are_drawn(seen: str) -> None:
    """The second measurement, else the first, else the model's; the title says which."""
    tree = tree_of(seen=seen)
    where, least, told = seen_in(tree)
    assert where == seen
    (panel,) = panels_of(opened(tree))
    wanted = [row[where][row["kernel"]] / row[least] for row in tree["shapes"]]
    assert panel.slowdowns["measured"].tolist() == pytest.approx(wanted)
    assert min(wanted) >= 1
    figure = bundle_figure(opened(tree))
    assert told in figure.get_suptitle().replace("\n", " ")
    (axes,) = lines_of(figure, "slowdown")
    assert axes.get_lines()[0].get_ydata().tolist() == pytest.approx(wanted)
    assert axes.get_lines()[0].get_xdata().tolist() == [row["m"] for row in tree["shapes"]]
    assert axes.get_xscale() == "log"
    assert bool(lines_of(figure, "cuBLASLt / ours")) == (seen == "scored")


def test_cublaslt_is_drawn_over_what_serves() -> None:
    tree = tree_of()
    tree["shapes"][3]["peer_seconds"] = None  # it failed there
    (axes,) = lines_of(bundle_figure(opened(tree)), "cuBLASLt / ours")
    drawn = axes.get_lines()[0].get_ydata()
    assert math.isnan(drawn[3])
    assert np.delete(drawn, 3) == pytest.approx(1.1)


@pytest.mark.parametrize("rule", [*RULES, "first call"])
def test_every_interval_has_its_end_and_its_name(rule: str) -> None:
    tree = tree_of()
    bundle = opened(tree, rule)
    (panel,) = panels_of(bundle)
    assert all(a != b for a, b in pairwise(panel.kernels))
    assert list(panel.upto) == sorted(panel.upto)
    for end, name in zip(panel.upto, panel.kernels, strict=True):
        served = "first call" not in rule and bundle.which(m=end, n=4096, k=4096)["kernel"]
        assert not served or served == name
    figure = bundle_figure(bundle)
    strip = figure.axes[0]
    assert [text.get_text() for text in strip.texts if text.get_text()] == list(panel.kernels)
    (axes,) = lines_of(figure, "slowdown")
    upright = [line.get_xdata()[0] for line in axes.get_lines() if len(line.get_xdata()) == 2]
    assert [x for x in upright if x > 1] == [end + 0.5 for end in panel.upto[:-1]]
    assert f"rule {rule}" in figure.get_suptitle()


def test_equal_rules_are_one_line() -> None:
    figure = bundle_figure(opened(tree_of()))
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "measured (and nearest, first call)" in named
    assert "round up" in named


def test_what_cannot_run_leaves_a_gap() -> None:
    """A kernel that failed the second time has no slowdown there; an illegal one does not serve."""
    tree = tree_of()
    row = tree["shapes"][0]
    row["scored"][row["kernel"]] = None
    assert math.isnan(panels_of(opened(tree))[0].slowdowns["measured"][0])
    require_legible(bundle_figure(opened(tree)))
    tree = tree_of(seen="predicted")
    row = tree["shapes"][0]
    row["predicted"][row["kernel"]] = None
    assert math.isfinite(panels_of(opened(tree))[0].slowdowns["measured"][0])
    for row in tree["shapes"]:
        row["predicted"] = [None, *row["predicted"][1:]]
    require_legible(bundle_figure(opened(tree)))


@pytest.mark.parametrize(
    ("layers", "kernels", "points", "seen"),
    [
        (layers, *of)
        for layers, of in by_turns(
            [ONE, FOUR[:2], FOUR],
            [(64, 64, "measured"), (1, 24, "scored"), (8, 24, "scored"), (1, 1, "predicted")],
        )
    ],
)
def test_a_bundle_is_legible(
    layers: Sequence[tuple[str, int, int]], kernels: int, points: int, seen: str
) -> None:
    m = tuple(sampled(1, 8192, points)) if points > 1 else (16,)
    figure = bundle_figure(opened(tree_of(layers, kernels, m, seen=seen)))
    require_legible(figure)
    assert len(lines_of(figure, "slowdown")) == len(layers)
    assert figure.get_figwidth() * 100 <= 1000


@pytest.mark.parametrize("count", [MOST_PANELS + 1, 30])
def test_of_many_layers_the_slowest_are_drawn(count: int) -> None:
    layers = [("", 1024 * (1 + i), 4096) for i in range(count)]
    tree = tree_of(layers)
    figure = bundle_figure(opened(tree))
    require_legible(figure)
    panels = panels_of(opened(tree))
    worst = sorted((float(panel.slowdowns["measured"].max()) for panel in panels), reverse=True)
    drawn = [axes.get_lines()[0].get_ydata() for axes in lines_of(figure, "slowdown")]
    assert sorted((float(np.max(line)) for line in drawn), reverse=True) == worst[:MOST_PANELS]
    assert f"the {MOST_PANELS} slowest of {count} layers" in figure.get_suptitle().replace(
        "\n", " "
    )


def test_two_layers_of_one_size_are_one_panel() -> None:
    tree = tree_of([("q", 4096, 4096), ("o", 4096, 4096)])
    (panel,) = panels_of(opened(tree))
    assert panel.title == "q, o: n = 4096, k = 4096"
    assert list(panel.m) == sampled(1, 8192, 24)


@given(
    st.lists(st.floats(0, 500), min_size=1, max_size=20).map(sorted),
    st.floats(1, 20),
)
def test_names_stand_apart(wanted: list[float], each: float) -> None:
    """In order, within the room, at least so far apart; those that are already are not moved."""
    room = 500.0
    places = spaced(wanted, each, room)
    assert all(b - a >= each - 1e-6 for a, b in pairwise(places))
    assert places[0] >= each / 2 - 1e-6
    assert places[-1] <= room - each / 2 + 1e-6
    if all(b - a >= each for a, b in pairwise([-each / 2, *wanted, room + each / 2])):
        assert places == pytest.approx(wanted)


def test_the_ending_says_what_is_written(folder: Path) -> None:
    for ending, start in (("png", b"\x89PNG"), ("SVG", b"<?xml"), ("pdf", b"%PDF")):
        path = folder.parent / f"x.{ending}"
        assert tinygpu("plot", "bundle", folder, "-o", path).exit_code == 0
        assert path.read_bytes().startswith(start)
    assert ">k00<" in (folder.parent / "x.SVG").read_text()


def test_without_an_output_it_lies_beside_the_bundle(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tinygpu("plot", "bundle", folder).stdout.strip().endswith("linear.png")
    assert folder.with_suffix(".png").is_file()
    folder.with_suffix(".png").unlink()
    monkeypatch.chdir(folder)
    assert tinygpu("plot", "bundle", ".", "--rule", "nearest").exit_code == 0
    assert folder.with_suffix(".png").is_file()
    assert load_bundle(folder).rule == "measured"


def test_a_mistake_is_one_line(folder: Path) -> None:
    assert "there is none" in complaint(tinygpu("plot", "bundle", folder / "no"))
    assert "no rule 'nearby'" in complaint(tinygpu("plot", "bundle", folder, "--rule", "nearby"))
    wrong = tinygpu("plot", "bundle", folder, "-o", "x.gif")
    assert wrong.exit_code == 2
    assert ".png, .svg, .pdf" in wrong.output
    (folder / "code").write_bytes(b"x")
    assert "'code' was altered" in complaint(tinygpu("plot", "bundle", folder))
    (folder / "bundle.json").write_text("{}")
    assert "is damaged" in complaint(tinygpu("plot", "bundle", folder))
