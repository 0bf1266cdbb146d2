"""The site of the documentation: it builds without a warning, and loads nothing from a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast

import pytest
import typer

import tinygpu
from tinygpu.cli import app

for package in ("mkdocs", "material", "mkdocstrings"):
    pytest.importorskip(package, reason="the extra 'docs' is not installed")

ROOT = Path(__file__).parent.parent


def build(folder: Path) -> None:
    """Build the site as ``make docs`` does."""
    run = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout + run.stderr


class Loaded(HTMLParser):
    """What a page makes a browser load, and its ids."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.ids |= {str(found["id"])} if found.get("id") else set()
        for name in ("src", "srcset", "data", "poster"):
            self.addresses += [str(found[name])] if found.get(name) else []
        loaded = tag == "link" and found.get("rel") not in ("canonical", "next", "prev")
        self.addresses += [str(found["href"])] if loaded and found.get("href") else []


def read(page: Path) -> Loaded:
    parser = Loaded()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser


def outside(addresses: list[str]) -> list[str]:
    return [a for a in addresses if re.match(r"(https?:)?//", a)]


def test_the_site(tmp_path: Path) -> None:
    """It builds without a warning, and is whole; one test, so that it is built once."""
    build(tmp_path)
    loads_nothing_from_outside(tmp_path)
    has_every_command_and_option((tmp_path / "reference" / "commands.html").read_text("utf-8"))
    pages = (tmp_path / "reference").glob("api-*.html")
    has_every_public_name({name for page in pages for name in read(page).ids})


def loads_nothing_from_outside(site: Path) -> None:
    """Scripts, styles, pictures, fonts: every address is within the site."""
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 20
    assert {page: found for page in pages if (found := outside(read(page).addresses))} == {}
    styles = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.css")}
    urls = {path: re.findall(r"url\([\"']?([^)\"']+)", text) for path, text in styles.items()}
    assert {path: found for path in urls if (found := outside(urls[path]))} == {}


def has_every_command_and_option(text: str) -> None:
    """All that ``--help`` shows is on the page of commands."""
    commands = cast("Any", typer.main.get_command(app)).commands
    for name, group in commands.items():
        for leaf, one in getattr(group, "commands", {"": group}).items():
            assert f"tinygpu {name} {leaf}".strip() in text
            for parameter in one.params:
                assert parameter.name == "help" or parameter.opts[-1] in text, (name, leaf)


def has_every_public_name(ids: set[str]) -> None:
    """What ``tinygpu`` exports is described where it is from."""
    assert {f"tinygpu.{tinygpu._HOMES[name]}.{name}" for name in tinygpu.__all__} <= ids


def test_an_address_outside_is_seen() -> None:
    addresses = ["https://fonts.example/a.css", "//cdn.example/b.js", "assets/c.js"]
    assert outside(addresses) == addresses[:2]
    parser = Loaded()
    parser.feed(
        '<link rel=stylesheet href="//a.b/c.css"><img src=d.png><a href="https://e.f">g</a>'
    )
    assert parser.addresses == ["//a.b/c.css", "d.png"]


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert pages == set(re.findall(r"[\w/-]+\.md", text.partition("\nnav:")[2]))
