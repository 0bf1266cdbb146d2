"""What texts refer to exists: files, sections, tests, commands; what an example prints is true."""

from __future__ import annotations

import ast
import doctest
import json
import math
import re
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import typer

from benchmarks import tables
from tests import pages
from tests.sample import SOAK
from tinygpu.cli import app

ROOT = Path(__file__).parent.parent
FOLDERS = ("tinygpu", "search", "codegen", "examples", "benchmarks", "tests")
SOURCES = sorted(
    path
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
    if path.relative_to(ROOT).parts[:2] not in {("tinygpu", "search"), ("tinygpu", "codegen")}
)
PAGES = (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md")))
PAGE = r"(docs/(?:tutorial/|how-to/|reference/)?[\w-]+\.md|README\.md)"
SECTION = rf'{PAGE}`*,\s+section\s+"([^"]+)"'


def headings(page: Path) -> set[str]:
    return set(re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE))


@cache
def names_of_tests() -> dict[str, set[str]]:
    found = {}
    for path in sorted((ROOT / "tests").glob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found[path.name] = {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
    return found


def missing(source: str) -> list[str]:
    """Pages and sections that a text names and that do not exist."""
    pages = [page for page in re.findall(PAGE, source) if not (ROOT / page).exists()]
    named = re.findall(SECTION, source)
    return pages + [
        f"{page}: {section}"
        for page, section in named
        if page not in pages and section not in headings(ROOT / page)
    ]


def test_every_section_that_a_docstring_names_exists() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in SOURCES if path != Path(__file__)}
    assert sum(len(re.findall(SECTION, text)) for text in texts.values()) > 20
    assert {path: missing(text) for path, text in texts.items() if missing(text)} == {}


def test_a_section_that_is_not_there_is_seen() -> None:
    assert missing('``docs/model.md``, section "Terms"') == []
    assert missing('``docs/model.md``, section "Termites"') == ["docs/model.md: Termites"]
    assert missing("docs/no-such-page.md") == ["docs/no-such-page.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_exists(page: Path) -> None:
    """Links, paths in backticks and tests, with their file or without."""
    text = page.read_text(encoding="utf-8")
    links = [ref for ref in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in ref]
    assert [ref for ref in links if not (page.parent / ref).exists()] == []
    paths = re.findall(r"`((?:\w+/)+[\w-]*(?:\.\w+)?)`", text)
    made = {"build", *re.findall(r"--out (\w+)", text)}  # the site's folder, the page's own
    assert [r for r in paths if not (ROOT / r).exists() and r.split("/")[0] not in made] == []
    known = names_of_tests()
    every = set().union(*known.values())
    named = re.findall(r"`(?:(test_\w+\.py)::)?(test_\w+)`", text)
    assert [
        ref for ref in named if ref[1] not in (known.get(ref[0], set()) if ref[0] else every)
    ] == []


def pages_run_together() -> dict[str, list[Path]]:
    """Pages with something to run: each by itself, but a tutorial's pages build on each other."""
    found: dict[str, list[Path]] = {}
    for page in PAGES:
        if re.search(r"^```(python|console)", page.read_text(encoding="utf-8"), re.MULTILINE):
            course = page.parent.name == "tutorial"
            found.setdefault("tutorial" if course else page.stem, []).append(page)
    for together in found.values():
        together.sort(key=lambda page: NAVIGATION.find(page.name))
    return found


NAVIGATION = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
RUN_TOGETHER = pages_run_together()
LONG = {"tutorial", "ask", "dispatch", "nothing-legal", "launch", "schedule", "report"}
"""Pages of many searches, run at a soak; tests of the commands have cases of the same kinds."""


@pytest.mark.parametrize("name", RUN_TOGETHER)
def test_what_a_page_runs_prints_what_it_says(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Programs and commands run in one folder, in the order of the page; --update-golden writes."""
    update = request.config.getoption("--update-golden")
    if name in LONG and not (SOAK or update):
        pytest.skip("make soak")
    for page in RUN_TOGETHER[name]:
        text = page.read_text(encoding="utf-8")
        true = pages.true_page(text, tmp_path)
        if update:
            page.write_text(true, encoding="utf-8")
        else:
            assert text == true, f"pytest tests/test_docs.py --update-golden renews {page.name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_does_not_run_could_be_run(page: Path) -> None:
    """Of blocks that need a GPU: programs compile, names that they import and options exist."""
    assert pages.faults(page.read_text(encoding="utf-8")) == []


def test_wrong_blocks_are_seen(tmp_path: Path) -> None:
    """A wrong output, an option or a name that there is not, a program without its output."""
    right = "```console\n$ tinygpu plot --help | head -2\n\n Usage: tinygpu plot …\n```\n"
    assert pages.true_page(right, tmp_path) == right
    assert pages.true_page(right.replace("Usage", "Use"), tmp_path) != right.replace("Usage", "Use")
    marked = "<!-- gpu -->\n```console\n$ tinygpu run a.json --quick\n```\n"
    assert "--quick" in pages.faults(marked)[0]
    assert pages.true_page(marked, tmp_path) == marked
    marked = "<!-- gpu -->\n```python\nfrom tinygpu.space.space import Spice\n```\n"
    assert pages.faults(marked) == ["tinygpu.space.space has no Spice"]
    assert pages.faults("```sh\nmake dmeo\n```\n") == ["make dmeo: no such target"]
    with pytest.raises(AssertionError, match="title"):
        pages.true_page("```python\nprint(1)\n```\nno output\n", tmp_path)


def test_every_command_on_a_page_is_one() -> None:
    """``python -m benchmarks.x`` names a module."""
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    modules = set(re.findall(r"python -m (benchmarks\.\w+)", text))
    assert modules
    for module in modules:
        path = ROOT / module.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").exists(), module


def test_every_command_that_a_page_names_is_one() -> None:
    """``tinygpu search`` in a sentence names a command; the README names them all."""
    command = typer.main.get_command(app)
    known = set(cast("Any", command).commands)
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        named = set(re.findall(r"`tinygpu (\w+)", text))
        assert named <= known, page
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert known <= set(re.findall(r"\w+", readme))


def test_the_tables_are_those_of_the_result_files() -> None:
    """``python -m benchmarks.tables`` would change nothing; the README's claim is among them."""
    for page in tables.PAGES:
        text = page.read_text(encoding="utf-8")
        assert tables.renewed(text) == text, "python -m benchmarks.tables renews it"
    every = "".join(page.read_text(encoding="utf-8") for page in tables.PAGES)
    assert set(re.findall(r"<!-- table ([\w ]+) -->", every)) == set(tables.TABLES)
    assert doctest.testmod(tables) == (0, 1)


def test_the_readmes_claim_follows_from_the_rows() -> None:
    """Of each card and kind the mean, the least and the most of the ratios, computed again."""
    claim = (ROOT / "README.md").read_text(encoding="utf-8").split("<!-- end -->")[0]
    told = [float(number) for number in re.findall(r"\d+\.\d+", claim)]
    expected, most = [], 0.0
    for card in ("h100", "h200"):
        files = (ROOT / f"benchmarks/results/{card}").glob("drawn_matmul*.json")
        trees = [json.loads(path.read_text()) for path in files]
        kinds: dict[str, list[float]] = {"bf16": [], "odd": [], "fp32": []}
        for row in (row for tree in trees for row in tree["rows"]):
            odd = "odd" if row["n"] % 8 else "bf16"
            kind = "fp32" if row["group"] == "drawn fp32" else odd
            if row["group"].startswith("drawn"):
                most = max(most, row["wall_seconds"])
                kinds[kind].append(row["peer_seconds"] / row["seconds"])
        for ratios in kinds.values():
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            expected += [round(number, 2) for number in (mean, min(ratios), max(ratios))]
        assert f"on an {trees[0]['provenance']['device'].split()[1]} " in claim
        assert str(len(kinds["bf16"]) + len(kinds["odd"])) in claim
        assert str(len(kinds["fp32"])) in claim
    assert told == expected
    assert f"of at most {most:.0f} seconds" in claim


def test_the_readme_is_short() -> None:
    """At most 1,000 words, its code among them."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 1000
