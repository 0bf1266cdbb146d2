"""What texts refer to exists: files, sections, tests, commands; what an example prints is true."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tinygpu.cli import app

ROOT = Path(__file__).parent.parent
FOLDERS = ("tinygpu", "search", "codegen", "examples", "benchmarks", "tests")
SOURCES = sorted(
    path
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
    if path.relative_to(ROOT).parts[:2] not in {("tinygpu", "search"), ("tinygpu", "codegen")}
)
PAGES = (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md")))
PAGE = r"(docs/[\w-]+\.md|README\.md)"
SECTION = rf'{PAGE}`*,\s+section\s+"([^"]+)"'


def headings(page: Path) -> set[str]:
    return set(re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE))


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
    assert [ref for ref in paths if not (ROOT / ref).exists()] == []
    known = names_of_tests()
    every = set().union(*known.values())
    named = re.findall(r"`(?:(test_\w+\.py)::)?(test_\w+)`", text)
    assert [
        ref for ref in named if ref[1] not in (known.get(ref[0], set()) if ref[0] else every)
    ] == []


PRINTED = r"```python\n(.*?)```\s+It prints:\s+```text\n(.*?)```"
WITH_CODE = [page for page in PAGES if "```python" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_every_program_on_a_page_prints_what_it_says(page: Path) -> None:
    """Each block of Python is followed by its output, and gives it."""
    text = page.read_text(encoding="utf-8")
    programs = re.findall(PRINTED, text, re.DOTALL)
    assert len(programs) == text.count("```python") > 0
    for code, printed in programs:
        run = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
        )
        assert run.returncode == 0, run.stderr
        assert run.stdout == printed


def test_every_command_on_a_page_is_one() -> None:
    """``python -m benchmarks.x`` names a module."""
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    modules = set(re.findall(r"python -m (benchmarks\.\w+)", text))
    assert modules
    for module in modules:
        assert (ROOT / f"{module.replace('.', '/')}.py").exists(), module


def test_the_readme_lists_the_commands_that_there_are() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^tinygpu (\w+)", text, re.MULTILINE))
    commands = {c.name or getattr(c.callback, "__name__", "") for c in app.registered_commands}
    groups = {g.name for g in app.registered_groups}
    assert listed == {str(name).replace("_", "-") for name in commands | groups}
