"""The report's page: whole, true, safe, and what it does in a browser."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest
from plotly.offline import get_plotlyjs

from tests.believed import believe
from tests.fake_gpu import Card
from tests.sample import SOAK
from tests.test_cli import FIX, SEARCH, complaint, tinygpu
from tinygpu.cli.console import count_text, time_text
from tinygpu.cli.given import read_schedule
from tinygpu.cli.palette import COMPONENTS, GRID, GROUND, MARKS, SYMBOLS
from tinygpu.cli.report import _measured_on, report_html
from tinygpu.machines import MACHINES
from tinygpu.search.store import Store
from tinygpu.space.measurement import Measurement, canonical, describe
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.schedule import Schedule, from_json

PROBLEM = Problem.of(matmul(), m=512, n=512, k=512)
SHORT = ["demo", "--tokens", "128", "--layer", "o", "--top", "2", "--no-measure"]
SIMT = [*SHORT, "--machine", "simt", "--layout", "nn", *FIX]
HOPPER = [*SHORT, "--fix", "tile_n=64,128", "--fix", "stages=2", "--fix", "persistent=0"]
OWN = f"{Path(__file__).parent.parent / 'examples' / 'first_machine.py'}:Axpb"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
HOSTILE = "</script><script>alert(1)</script><!-- & \" ' `${x}` \u2028 <b>bold</b>"


class Page(HTMLParser):
    """A page's tags, checked for balance; its scripts by their id; what it refers to."""

    VOID = ("meta", "link")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.references: list[str] = []
        self.scripts: dict[str, str] = {}
        self.name = ""
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.stack.append(tag)
        self.name = dict(attrs).get("id") or "page"
        self.references += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] == "script":
            self.scripts[self.name] = self.scripts.get(self.name, "") + data

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def unpacked(self, name: str) -> str:
        """The text that a script holds compressed."""
        return gzip.decompress(b64decode(self.scripts[name])).decode()

    @property
    def data(self) -> Any:
        """The data from which the page draws itself."""
        tree = json.loads(self.unpacked("data"))
        for section in tree["sections"]:
            columns = section["details"].items()
            section["details"] = [
                {name: values[i] for name, values in columns if values[i] is not None}
                for i in range(len(section["found"]["best"]))
            ]
        return tree


def page_of(folder: Path) -> Page:
    return Page((folder / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a search, with a report: three schedules, the third of which failed."""
    folder = tmp_path_factory.mktemp("found") / "best"
    with pytest.MonkeyPatch.context() as patch:
        believe(patch)
        assert tinygpu(*SEARCH, "--out", folder).exit_code == 0
    given = [read_schedule(folder / f"0{n}.json", "h200") for n in (1, 2, 3)]
    other = given[0].schedule.with_(raster=1, pad_a=8, issue=0)
    assert other not in [one.schedule for one in given]
    operation, sizes, _ = describe(given[0].problem, other)

    def timed(schedule: str, seconds: float | None, reason: str = "") -> Measurement:
        return Measurement(
            operation=operation, sizes=sizes, schedule=schedule, device="NVIDIA H200", driver="580",
            emitter=1, seconds=seconds, clock_mhz=1755, capped=True, reason=reason,
        )  # fmt: skip

    with Store(folder / "store.db") as kept:
        for one, seconds in zip(given, (3e-5, 2e-5, None), strict=True):
            reason = "" if seconds else f"it hangs {HOSTILE}"
            kept.put(timed(describe(one.problem, one.schedule)[2], seconds, reason))
        kept.put(timed(describe(given[0].problem, other)[2], 4e-5))
        kept.put(timed(canonical({"peer": "tinygpu.codegen.run.cublaslt:best"}), 2.5e-5))
    result = tinygpu("report", folder)
    assert result.exit_code == 0, result.output
    return folder


KEPT: dict[tuple[str, str], Any] = {}
"""What demos of the same layer worked out, once for all tests."""


def kept(place: str, work: Callable[..., Any], *words: Any, **named: Any) -> Any:
    key = place, repr((words, named))
    if key not in KEPT:
        KEPT[key] = work(*words, **named)
    return KEPT[key]


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Demos of the same layer explain and interpret the same schedule: the first does it."""
    for place in (
        "tinygpu.search.explain.explain.explain",
        "tinygpu.codegen.run.interpretation.interpret",
        "tinygpu.meaning.interpret.check",
    ):
        monkeypatch.setattr(place, partial(kept, place, resolve_name(place)))


def test_the_demo_leaves_a_whole_report(once: None, tmp_path: Path) -> None:
    """One page, whose numbers are the results', and the files beside it."""
    out = tmp_path / "report"
    result = tinygpu(*SIMT, "--out", out)
    assert result.exit_code == 0, result.output
    assert "nothing was measured" in result.stdout
    page = page_of(out)
    (section,) = page.data["sections"]
    assert section["why_not"] == "it was not asked for"
    tree = section["found"]
    assert page.data["runs"]["demo"]["command"].startswith("tinygpu")
    for link in [*section["links"].values(), *(one["file"] for one in section["details"])]:
        assert (out / link).is_file(), link
    assert all(row["registers"] > 0 for row in tree["best"])
    assert section["details"][0]["ptx"] == (out / "ptx" / "o.ptx").read_text()
    files = [out / one["file"] for one in section["details"]]
    assert len(section["words"]) == len(files) - 1 < 2
    for text in section["words"].values():
        assert text == tinygpu("explain", *files).stdout.rstrip("\n")
    assert tree["proven"]
    assert tree["sizes"] == {"m": 128, "n": 4096, "k": 4096}
    assert section["facts"]["interpreted"].startswith("right at ")
    assert f": {tree['best'][0]['registers']} registers" in section["facts"]["assembled"]
    for path in sorted((out / "schedules").iterdir()):
        from_json(path.read_text(), MACHINES)
    assert json.loads((out / "traces" / "o.json").read_text())["traceEvents"]


def test_the_page_asks_for_nothing_outside_itself(searched: Path) -> None:
    """No address of another machine, the plotting library's text aside; no other file."""
    page = page_of(searched)
    assert page.references == ["data:,"]
    library = page.scripts["plotly"]
    assert page.unpacked("plotly") == get_plotlyjs()
    text = (searched / "report.html").read_text(encoding="utf-8").replace(library, "")
    rest = text.replace(page.scripts["data"], page.unpacked("data"))
    assert re.findall(r"(?:https?:|//[\w-]+\.)\S{0,60}|@import|url\(", rest) == []


def test_a_report_is_under_3_mb(searched: Path) -> None:
    """Of one search; a page of the demo has four, each of which adds what its data takes."""
    page = page_of(searched)
    data, whole = len(page.scripts["data"]), (searched / "report.html").stat().st_size
    assert whole < 2.2e6
    assert whole - data + 4 * 20 / len(page.data["sections"][0]["details"]) * data < 3e6


def test_the_page_has_the_colours_of_the_pictures(searched: Path) -> None:
    """Of parts the colours and marks, of the page the grounds and lines, all on a light ground."""
    page = page_of(searched)
    palette = page.data["palette"]
    assert {name: paint for name, (paint, _) in palette["components"].items()} == {
        name: paint for name, (paint, _) in COMPONENTS.items()
    }
    assert set(SYMBOLS) == set(MARKS) | {mark for _, mark in COMPONENTS.values()}
    text = (searched / "report.html").read_text(encoding="utf-8")
    for name, paint in (("page", "#ffffff"), ("line", GRID), ("ground", GROUND)):
        assert f"--{name}: {paint};" in text
    assert "prefers-color-scheme" not in text
    script = (files("tinygpu.cli") / "report.js").read_text() + (
        files("tinygpu.cli") / "report.css"
    ).read_text()
    assert set(re.findall(r"#[0-9a-f]{3,6}\b", script)) <= {"#data", "#111"}
    panel = page.data["sections"][0]["details"][0]["layouts"][0]["panels"][0]
    assert set(panel["paint"]) == {str(n) for row in panel["cells"] for n in row}


def test_what_ties_is_on_the_page(searched: Path) -> None:
    """Two times a tenth apart, whose rounds spread by more, stand together."""
    (section,) = page_of(searched).data["sections"]
    rows = section["found"]["best"]
    assert [(row["stands"], row["shared"]) for row in rows] == [
        (2, False), (1, False), (None, False), (3, False)
    ]  # fmt: skip
    assert section["ties"] == ""
    for row in rows:
        low, high = row["interval_seconds"]
        assert low < row["predicted_seconds"] < high


def test_a_folder_s_report_has_what_search_and_store_have(searched: Path) -> None:
    """Rows are those of search.json with the store's times; then what only the store has."""
    listed = json.loads((searched / "search.json").read_text())
    (section,) = page_of(searched).data["sections"]
    rows = section["found"]["best"]
    for row, mine in zip(listed["best"], rows[:3], strict=True):
        assert {name: mine[name] for name in row} == row
    assert [row["seconds"] for row in rows] == [3e-5, 2e-5, None, 4e-5]
    assert rows[3]["decisions"]["pad_a"] == 8
    assert section["found"]["peers"] == [{"name": "cublaslt:best", "seconds": 2.5e-5}]
    assert section["measured_on"].startswith("NVIDIA H200, driver 580, 1755 MHz, power")
    assert section["details"][3]["file"] == ""
    found = tinygpu("explain", searched / "01.json", searched / "03.json", "--json")
    assert rows[0]["predicted_seconds"] == json.loads(found.stdout)["a"]["seconds"]
    layouts = section["details"][0]["layouts"]
    assert [one["title"].partition(":")[0] for one in layouts] == ["smem_a", "smem_b"]
    assert layouts[0]["panels"][0]["cells"][0][5] == 5


def test_a_folder_without_a_search_is_no_report(tmp_path: Path) -> None:
    told = complaint(tinygpu("report", tmp_path))
    assert f"report {tmp_path}: no search.json" in told
    for text in ("{", "[]", '{"finished": false}', '{"best": [], "device": "h200"}',
                 '{"best": [{"rank": "x"}], "device": "h200"}'):  # fmt: skip
        (tmp_path / "search.json").write_text(text)
        assert "not a search that has finished" in complaint(tinygpu("report", tmp_path))


def test_what_the_page_could_not_show_is_no_search(searched: Path, tmp_path: Path) -> None:
    """A count that is missing, and a number that JavaScript does not read."""
    tree = json.loads((searched / "search.json").read_text())
    for wrong in ({**tree, "raw": None}, {**tree, "admissible": float("nan")}):
        (tmp_path / "search.json").write_text(json.dumps(wrong))
        assert "not a search that has finished" in complaint(tinygpu("report", tmp_path))


def test_a_clock_that_is_not_known_is_not_told() -> None:
    one = Measurement(
        operation="", sizes="", schedule="", device="NVIDIA H200", driver="580", emitter=1,
        seconds=1e-5,
    )  # fmt: skip
    assert _measured_on([one, None]) == "NVIDIA H200, driver 580"
    assert _measured_on([one, replace(one, clock_mhz=1755)]) == "NVIDIA H200, driver 580, 1755 MHz"


def test_times_are_of_the_device_of_the_search(searched: Path) -> None:
    told = complaint(tinygpu("report", searched, "--device", "a100"))
    assert "searched for h200, and --device is a100" in told


def test_schedules_of_another_search_are_refused(searched: Path, tmp_path: Path) -> None:
    shutil.copy(searched / "search.json", tmp_path)
    assert "01.json" in complaint(tinygpu("report", tmp_path))
    for n, name in enumerate(("02", "01", "03"), 1):
        shutil.copy(searched / f"{name}.json", tmp_path / f"0{n}.json")
    assert "not schedule 1 of search.json" in complaint(tinygpu("report", tmp_path))


def test_hostile_texts_stay_texts(searched: Path) -> None:
    """Nothing of the data ends the script or the title that holds it."""
    (section,) = page_of(searched).data["sections"]
    section = json.loads(json.dumps(section))
    section["title"] = HOSTILE
    text = report_html(HOSTILE, HOSTILE, {HOSTILE: {HOSTILE: HOSTILE}}, [section])
    page = Page(text)
    assert page.data["title"] == page.data["sections"][0]["title"] == HOSTILE
    assert "<script>alert" not in text


def test_an_interrupted_demo_keeps_its_layers(
    once: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tinygpu.search.exact.best import rank

    calls = [0]

    def second_stops(*words: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] > 1:
            raise KeyboardInterrupt
        return rank(*words, **named)

    monkeypatch.setattr("tinygpu.search.tuning.ranking.rank", second_stops)
    result = tinygpu(*SIMT, "--layer", "down", "--out", tmp_path)
    assert result.exit_code == 130
    assert "the same command does all again" in result.stderr
    kept = (tmp_path / "report.html").read_text()
    assert [one["name"] for one in Page(kept).data["sections"]] == ["o"]
    assert tinygpu(*SIMT, "--out", tmp_path).exit_code == 130
    assert (tmp_path / "report.html").read_text() == kept  # until there is a newer one


def test_a_wrong_kernel_fails_the_demo(
    once: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finding of the interpreter is in the report and in the status."""
    from tinygpu.meaning.race import Finding

    found = (Finding("race", "st", "a <race> in smem_a"),)
    monkeypatch.setattr("tinygpu.meaning.interpret.check", lambda *_, **__: found)
    result = tinygpu(*SIMT, "--out", tmp_path)
    assert result.exit_code == 1
    assert "WRONG: a <race>" in result.stdout
    (section,) = page_of(tmp_path).data["sections"]
    assert section["facts"]["interpreted"].startswith("wrong at ")
    assert section["facts"]["interpreted"].endswith(": a <race> in smem_a")


@pytest.mark.usefixtures("believed")
def test_a_demo_on_a_hopper_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, card: Card
) -> None:
    """Times stand beside the predictions: in the table, the tree and the page."""

    def timed(_space: Any, schedules: list[Schedule], **_named: Any) -> list[Measurement]:
        operation, extents, _ = describe(PROBLEM, schedules[0])
        return [
            Measurement(
                operation=operation, sizes=extents, schedule="{}", device="NVIDIA H200", driver="y",
                emitter=1, seconds=1e-5 * (2 + n), clock_mhz=1980,
            )
            for n, _ in enumerate(schedules)
        ]  # fmt: skip

    card.arch()
    monkeypatch.setattr("tinygpu.cli.demo.measured", timed)
    words = [word for word in HOPPER if word != "--no-measure"]
    result = tinygpu(*words, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "20.00 us" in result.stdout
    assert "nothing was measured" not in result.stdout
    (section,) = page_of(tmp_path).data["sections"]
    assert section["measured_on"] == "NVIDIA H200, driver y, 1980 MHz"
    assert section["why_not"] == ""
    assert section["found"]["peers"] == []
    assert [row["seconds"] for row in section["found"]["best"]] == pytest.approx([2e-5, 3e-5])
    assert "cublas_seconds" not in section["found"]
    assert section["facts"]["interpreted"].startswith("right at ")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a search over a machine of the user's own, with a report."""
    folder = tmp_path_factory.mktemp("own")
    words = ("search", "elementwise", "a*x + b", "-i", 1 << 20, "--machine", OWN, "--top", 3)
    assert tinygpu(*words, "--out", folder).exit_code == 0
    assert "give --machine" in complaint(tinygpu("report", folder))
    result = tinygpu("report", folder, "--machine", OWN)
    assert result.exit_code == 0, result.output
    return folder


def test_a_machine_of_one_s_own_has_a_report(own: Path) -> None:
    (section,) = page_of(own).data["sections"]
    assert sorted(section["words"]) == ["0 1", "0 2", "1 2"]
    files = [own / name for name in ("01.json", "03.json")]
    explained = tinygpu("explain", *files, "--machine", OWN).stdout
    assert section["words"]["0 2"] == explained.rstrip("\n")
    assert all(one["ptx"] and one["timeline"]["events"] for one in section["details"])
    assert [one["layouts"] for one in section["details"]] == [[], [], []]


# ---- in a browser


def browser() -> str | None:
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


at_a_soak = pytest.mark.skipif(not SOAK, reason="make soak")
in_a_browser = pytest.mark.skipif(
    browser() is None, reason=f"no browser: none of {', '.join(BROWSERS)} is on PATH"
)

WATCH = (
    "<script>window.errors = []; addEventListener('error', (e) => errors.push(e.message));</script>"
)
PROBE = """<script>
(async () => {
  const told = document.createElement("pre");
  told.id = "told";
  try {
    while (!document.documentElement.dataset.ready && !errors.length) {
      await new Promise((done) => setTimeout(done, 20));
    }
    const answer = await (async () => { %s })();
    told.textContent = JSON.stringify({ answer, errors, hash: location.hash });
  } catch (error) {
    told.textContent = JSON.stringify({ errors: [...errors, String(error)] });
  }
  document.body.append(told);
})();
</script>"""


def seen(folder: Path, script: str, *, state: str = "", width: int = 1200) -> tuple[Any, str]:
    """Open a copy of the page, without a network; return what a script returns, and the address."""
    text = (folder / "report.html").read_text(encoding="utf-8")
    probed = text.replace("<head>", f"<head>{WATCH}").replace("</body>", f"{PROBE % script}</body>")
    path = folder / "probed.html"
    path.write_text(probed, encoding="utf-8")
    run = subprocess.run(
        [
            browser() or "", "--headless", "--no-sandbox", "--disable-gpu",
            "--host-resolver-rules=MAP * ~NOTFOUND", f"--window-size={width},1400",
            f"--user-data-dir={folder / 'browser'}", "--virtual-time-budget=20000", "--dump-dom",
            f"{path.as_uri()}#{state}",
        ],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    found = re.search(r'<pre id="told">(.*?)</pre>', run.stdout, re.DOTALL)
    assert found, run.stderr[-2000:]
    unescaped = found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    told = json.loads(unescaped)
    assert told["errors"] == []
    return told["answer"], told["hash"]


CELLS = """const cells = (n) => [...document.querySelectorAll("#table tbody tr")].map(
  (row) => row.children[n].textContent);"""
MARKED = """const marked = () => ["a", "b"].map((name) => [...document.querySelectorAll(
  `#table tr.${name}`)].map((row) => row.children[1].textContent).join());"""


ADDRESSES = (
    (800, "a=x&b=99&sort=no&filter=no&x=no&layer=no", ["1", "2", "3", "4"]),
    (1600, "a=2&b=1&sort=-measured&x=pad_a&y=ratio", ["4", "1", "2", "3"]),
)
"""Widths, addresses, and the order in which rows stand: what has no time comes last."""


@in_a_browser
@pytest.mark.parametrize(("width", "state", "order"), ADDRESSES)
def test_it_opens_without_a_network_and_nothing_overflows(
    searched: Path, width: int, state: str, order: list[str]
) -> None:
    """At an address that sorts and plots, and at one that means nothing."""
    script = """
    const wide = [...document.querySelectorAll("body *")].filter((one) =>
      !one.closest(".scrolls *, .listing *, svg, script") &&
      one.getBoundingClientRect().right > innerWidth + 1);
    return {
      ready: document.documentElement.dataset.ready,
      asked: performance.getEntriesByType("resource").map((one) => one.name).filter(
        (name) => !name.startsWith("data:")),
      wide: wide.map((one) => one.outerHTML.slice(0, 80)),
      scroll: document.documentElement.scrollWidth - innerWidth,
      plots: document.querySelectorAll(".plot .main-svg").length,
      text: document.body.innerText.includes("alert(1)"),
      order: cells(1), marked: marked(),
      axes: ["x", "y"].map((name) => at(`axis ${name}`).selectedOptions[0].textContent),
      points: at("scatter").data.flatMap((one) => (one.customdata ? one.y : [])).length,
    };"""
    told, _ = seen(searched, CELLS + MARKED + script, width=width, state=state)
    assert told["order"] == order
    if width == 1600:
        assert told["marked"] == ["1", "2"]  # A is the better ranked
        assert told["axes"] == ["pad_a", "measured / predicted"]
        assert told["points"] == 3
    assert told["ready"] == "1"
    assert told["asked"] == []
    assert told["wide"] == []
    assert told["scroll"] <= 0
    assert told["plots"] >= 4
    assert told["text"]  # of the hostile reason, as text


@at_a_soak
@in_a_browser
@pytest.mark.parametrize("name", ["simt", "ampere", "hopper", "blackwell"])
def test_the_table_fits_1280_pixels(name: str, searched: Path, tmp_path: Path) -> None:
    """Every decision differs, and all was measured: no column is out of sight."""
    (section,) = json.loads(json.dumps(page_of(searched).data["sections"]))
    rng = np.random.default_rng(0)
    choices = {n: one.values for n, one in MACHINES[name].decisions().items() if one.values}
    drawn = [{n: v[rng.integers(len(v))] for n, v in choices.items()} for _ in range(24)]
    row = section["found"]["best"][0] | {"seconds": 1.2345e-3, "spread": 0.1, "place": 88}
    section["found"]["best"] = [row | {"decisions": one} for one in drawn]
    section["details"] = [section["details"][0]] * len(drawn)
    (tmp_path / "report.html").write_text(report_html(name, "", {}, [section]), encoding="utf-8")
    script = """const box = at("table");
    return [box.scrollWidth - box.clientWidth, box.textContent];"""
    (over, text), _ = seen(tmp_path, script, width=1280)
    differing = [n for n in choices if len({one[n] for one in drawn}) > 1]
    assert [n for n in differing if n not in text] == []
    assert over <= 0


@in_a_browser
def test_what_it_shows_is_what_the_command_prints(searched: Path) -> None:
    """Times and counts in the command's own form; the text of explain; the peer."""
    listed = json.loads((searched / "search.json").read_text())
    script = f"""{CELLS}
    return {{ predicted: cells(3), interval: cells(4), measured: cells(5),
      words: at("words").textContent, about: at("about").innerText,
      failures: at("failures").innerText }};"""
    told, _ = seen(searched, script, state="a=3&b=1")
    rows = listed["best"]
    assert told["predicted"][:3] == [time_text(row["predicted_seconds"]) for row in rows]
    ends = [[float(end) for end in text[:-3].split(" to ")] for text in told["interval"]]
    for (low, high), row in zip(ends, rows, strict=False):
        assert [1e-6 * low, 1e-6 * high] == pytest.approx(row["interval_seconds"], abs=6e-8)
    assert told["measured"] == ["30.00 us", "20.00 us", "failed", "40.00 us"]
    files = [searched / name for name in ("01.json", "03.json")]
    assert told["words"] == tinygpu("explain", *files).stdout.rstrip("\n")
    assert count_text(listed["raw"]) in told["about"]
    assert "cublaslt:best: 25.00 us; the fastest schedule is 1.25 times as fast" in told["about"]
    assert told["failures"] == f"schedule 3 failed: it hangs {HOSTILE}"


@at_a_soak
@in_a_browser
def test_a_decision_may_have_the_name_of_a_quantity(own: Path) -> None:
    """``threads`` is one of the machine's decisions, and a number of every schedule."""
    rows = page_of(own).data["sections"][0]["found"]["best"]
    script = f"""{CELLS}
    return {{ keys: state.quantities.map((one) => one.key), order: cells(1),
      texts: at("layouts").innerText }};"""
    told, _ = seen(own, script, state="filter=decision threads:256")
    assert len(set(told["keys"])) == len(told["keys"])
    assert {"threads", "decision threads"} <= set(told["keys"])
    fits = [str(n) for n, row in enumerate(rows, 1) if row["decisions"]["threads"] == 256]
    assert told["order"] == fits
    assert told["texts"].count("nothing goes through shared memory") == 2


@in_a_browser
def test_clicks_and_keys(searched: Path) -> None:
    """Boxes, rows, points, heads, filters and buttons act, and the focus stays where it was."""
    script = f"""{CELLS} {MARKED}
    const told = {{ first: marked() }};
    at("choose 2").focus();
    at("choose 2").click();
    told.third = marked();
    told.focus = document.activeElement.id;
    document.querySelectorAll("#table tbody tr")[1].click();
    told.row = marked();
    at("scatter").emit("plotly_click", {{ points: [{{ customdata: 0 }}] }});
    told.point = marked();
    const trace = at("scatter").data.findIndex((one) => one.customdata);
    Plotly.Fx.hover(at("scatter"), [{{ curveNumber: trace, pointNumber: 0 }}]);
    await new Promise((done) => setTimeout(done, 300));
    told.hover = at("scatter").querySelector(".hoverlayer").textContent;
    at("sort predicted").click();
    at("sort predicted").click();
    told.order = cells(1);
    at("show ptx").click();
    told.pressed = at("show ptx").getAttribute("aria-pressed");
    told.code = document.querySelector("#code pre").textContent.length;
    at("lines all").click();
    told.all = document.querySelector("#code pre").textContent;
    told.differ = document.querySelectorAll("#code .less").length;
    const copy = document.querySelector("#code button");
    copy.click();
    await new Promise((done) => setTimeout(done, 300));
    told.copied = document.querySelector("#code button").textContent;
    at("filter bottleneck").selectedIndex = 1;
    at("filter bottleneck").dispatchEvent(new Event("change"));
    told.filtered = cells(1).length;
    told.dangling = [...document.querySelectorAll("button, input, select, a")].filter(
      (one) => one.tabIndex < 0 && !one.closest(".plot")).length;
    return told;"""
    told, address = seen(searched, script)
    assert told["first"] == ["1", "2"]
    assert told["third"] == ["2", "3"]  # the earliest makes room
    assert told["focus"] == "choose 2"
    assert told["row"] == ["3", ""]
    assert told["point"] == ["1", "3"]
    assert re.match(r"schedule \d: [\d.]+ us predicted, [\d.]+ us measured", told["hover"])
    assert told["order"] == ["4", "1", "2", "3"]
    assert told["pressed"] == "true"
    details = page_of(searched).data["sections"][0]["details"]
    shown = re.sub(r"\s+", "", told["all"])
    assert shown == re.sub(r"\s+", "", details[0]["ptx"])
    assert told["code"] < len(told["all"])  # equal lines were folded
    assert told["differ"] > 0
    assert told["copied"] == "copied"
    assert 0 < told["filtered"] <= 4
    assert told["dangling"] == 0
    for part in ("a=3", "b=1", "sort=-predicted", "show=ptx", "lines=all", "filter=bottleneck%3A"):
        assert part in address
