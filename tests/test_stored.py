"""The commands on stores: what is listed, carried over, and refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tinygpu.__main__ import main
from tinygpu.cli import app
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.search.store import Store
from tinygpu.space.measurement import Measurement, describe
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.schedule import Schedule


def run(*words: object) -> str:
    result = CliRunner().invoke(app, ["store", *map(str, words)])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A store with two problems, and one schedule that failed."""
    path = tmp_path / "store.db"
    with Store(path) as store:
        for n, seconds in ((256, 2e-6), (256, 1e-6), (512, None)):
            point = {**LADDER["tuned"], "raster": 1 if seconds == 2e-6 else 2}
            problem = Problem.of(matmul(), m=n, n=n, k=n)
            words = describe(problem, Schedule.of(Simt(), point))
            store.put(
                Measurement(
                    operation=words[0],
                    sizes=words[1],
                    schedule=words[2],
                    device="H200",
                    driver="580",
                    emitter=3,
                    seconds=seconds,
                    reason="" if seconds else "it hangs",
                )
            )
    return path


def test_a_list_says_what_there_is(filled: Path) -> None:
    told = [line.split() for line in run("list", filled).splitlines()]
    assert told[0] == ["3", "measurements"]
    small, large = (line for line in told if "matmul" in line)
    assert small[2:5] == ["k=256", "m=256", "n=256"]
    assert small[-4:] == ["2", "0", "1.000", "us"]
    assert large[-2:] == ["1", "1"]
    tree = json.loads(run("list", filled, "--json"))
    assert [(row["measured"], row["failed"], row["best_seconds"]) for row in tree] == [
        (2, 0, 1e-6),
        (1, 1, None),
    ]


def test_what_is_exported_is_imported_once(filled: Path, tmp_path: Path) -> None:
    """Through a file and through a pipe, into a new store and into one that has it."""
    lines, other = tmp_path / "all.jsonl", tmp_path / "other.db"
    assert run("export", filled, "-o", lines).endswith("3 measurements\n")
    assert run("export", filled) == lines.read_text()
    for _ in range(2):
        assert run("import", other, lines).splitlines()[-1] == f"{other}: 3 measurements"
    with Store(filled) as first, Store(other) as second:
        assert list(first) == list(second)


def test_what_is_wrong_is_one_line(
    filled: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No store, no file, a line that is none: nothing of that file is kept, nothing is made."""
    lines = tmp_path / "some.jsonl"
    run("export", filled, "-o", lines)
    lines.write_text(lines.read_text() + "\n" + json.dumps({"seconds": 1}) + "\n")
    new = tmp_path / "new.db"
    (tmp_path / "empty").mkdir()
    for words, told in (
        (("list", tmp_path / "none.db"), "there is none"),
        (("export", lines), "no store"),
        (("import", new, tmp_path / "none.jsonl"), "give a file that export wrote"),
        (("import", new, lines), "some.jsonl: line 5"),
        (("import", new, lines.parent / "none"), "No such file"),
        (("import", new, tmp_path / "empty"), "empty: it is a folder, and there is no store.db in"),
        (("import", tmp_path / "empty", lines), "a search with --measure --out makes one"),
        (("import", tmp_path, lines), f"give {filled}"),
        (("list", tmp_path), f"give {filled}"),
        (("export", filled, "-o", tmp_path / "none" / "x.jsonl"), "give another file"),
    ):
        monkeypatch.setattr(sys, "argv", ["tinygpu", "store", *map(str, words)])
        with pytest.raises(SystemExit) as exit_:
            main()
        said = capsys.readouterr().err
        assert (exit_.value.code, len(said.splitlines())) == (2, 1)
        assert told in said
    assert not (tmp_path / "none.db").exists()
    assert not new.exists()
