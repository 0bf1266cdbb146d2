"""The commands ``ask`` and ``prove``, and the language of wishes: a mistake is one line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.test_cli import complaint, tinygpu
from tinygpu.devices.device import load_device
from tinygpu.errors import WishError
from tinygpu.machines import MACHINES
from tinygpu.machines.hopper import Hopper
from tinygpu.machines.simt import Simt
from tinygpu.space.quantities import QUANTITIES
from tinygpu.space.questions import Answer, ask
from tinygpu.space.space import Space
from tinygpu.space.wishes import wishes
from tinygpu.term.machine import Requirement
from tinygpu.term.operation import Operation, Problem, matmul
from tinygpu.term.schedule import from_json

ROOT = Path(__file__).parent.parent
PROBLEM = Problem.of(matmul(), m=64, n=64, k=64)
PAGE = (ROOT / "docs" / "ask.md").read_text(encoding="utf-8")
SIZES = ["-m", 512, "-n", 512, "-k", 512]
SMALL = ["matmul", "--machine", "hopper", *SIZES]


class Thirds(Simt):
    def requires(self, operation: Operation, choose: Any) -> tuple[Requirement, ...]:
        rows = choose.tile_m
        own = Requirement("thirds", rows % 3 == 0, f"{rows} is no multiple of 3", "change tile_m")
        return (*super().requires(operation, choose), own)


def test_a_sentence_with_values_is_that_of_one_schedule() -> None:
    """Over a space they are arrays."""
    space = Space(Thirds(), PROBLEM, load_device("h200"))
    (reason,) = ask(space).reasons
    assert re.fullmatch(
        r"  law   thirds: \d+ is no .* 3\n        way out: change tile_m", str(reason)
    )


def test_the_page_names_every_quantity() -> None:
    assert all(f"`{name}`" in PAGE for name in QUANTITIES)


@pytest.mark.parametrize(
    ("wish", "column", "told"),
    [
        ("stagez >= 5", 1, "did you mean stages?"),
        ("smem >= 5", 1, "did you mean smem_bytes?"),
        ("m + qqq >= 5", 5, "quantities smem_bytes, threads"),
        ("tile_m ** 2 > 3", 1, "not of the language"),
        ("stages >= 2 and tile_m / 2 == 3", 17, "not of the language"),
        ("stages > 2.5", 10, "not of the language"),
        ("stages > True", 10, "not of the language"),
        ("f(stages) > 3", 1, "not of the language"),
        ("stages.real > 3", 1, "not of the language"),
        ("(stages > 3) if m else n", 1, "not of the language"),
        ("[s for s in (1, 2)] == 5", 1, "not of the language"),
        ("stages is 5", 1, "not of the language"),
        ("stages", 1, "is no condition"),
        ("5", 1, "is no condition"),
        ("stages and m > 1", 1, "is not a condition"),
        ("not stages", 5, "is not a condition"),
        ("(stages > 1) + 1 > 1", 2, "is not an integer"),
        ("stages in 5", 11, "write in (1, 2)"),
        ("stages in (1, 'x')", 1, "compare an integer"),
        ("pipeline < 'none'", 1, "by == or !="),
        ("pipeline == 'nine'", 13, '"none", "register", "cp.async"'),
        ("pipeline == order", 13, "is not a value"),
        ("'a' == 'a'", 1, "compare an integer"),
        ("stages = 5", 8, "invalid syntax"),
        ("stages >= ", 10, "invalid syntax"),
        ("stages >= 5; import os", 12, "invalid syntax"),
        ("stages > 1 and (m", 16, "never closed"),
        ("é > 1 and é > 2", 1, "is no name"),
        ("m > 1 and 'é' == é", 18, "is no name"),
        (f"stages == {'9' * 1900}0{'9' * 5000}", 6911, "longer than"),
        (f"{'-' * 1500}stages > 1", 1, "nested too deeply"),
        ("a\0b", 2, "null bytes"),
        ("stages > \udcff", 10, "not Unicode"),
        ("stages > 0 # deep\nand m == 3", 12, "no comments"),
    ],
)
def test_what_is_not_of_the_language_is_pointed_at(wish: str, column: int, told: str) -> None:
    with pytest.raises(WishError) as caught:
        wishes(wish, Simt(), PROBLEM)
    line = str(caught.value)
    assert told in line
    assert f"column {column}, at" in line
    assert "\n" not in line
    assert len(line) < 900


def test_wishes_are_the_parts_that_and_joins() -> None:
    found = wishes("stages > 2 and (m > 1 and n > 1) and (k > 1 or k < 9)", Simt(), PROBLEM)
    assert [wish.text for wish in found] == ["stages > 2", "m > 1", "n > 1", "k > 1 or k < 9"]
    assert [w.text for w in wishes("m > 1 and  m > 1", Simt(), PROBLEM)] == ["m > 1"]
    assert wishes("  ", Simt(), PROBLEM) == ()
    (deep,) = wishes(f"{'not ' * 100}(threads > 2)", Simt(), PROBLEM)
    assert deep.holds({"threads": 3})
    assert deep.quantities == ("threads",)


def test_a_decision_comes_before_a_size_and_a_quantity() -> None:
    (wish,) = wishes("ctas_per_sm * smem_bytes > m", Hopper(), PROBLEM)
    assert (wish.names, wish.quantities) == (("ctas_per_sm", "smem_bytes", "m"), ("smem_bytes",))


def test_a_schedule_that_was_found_is_a_file_for_the_other_commands(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    result = tinygpu("ask", *SMALL, "smem_bytes > 100000", "--out", file, "--json")
    assert result.exit_code == 0
    tree = json.loads(result.stdout)
    assert tree["outcome"] == "found"
    assert tree["values"]["smem_bytes"] > 100000
    _, problem, schedule = from_json(file.read_text(), MACHINES)
    assert problem.sizes == {"m": 512, "n": 512, "k": 512}
    assert dict(schedule.decisions) == tree["schedule"]
    assert tinygpu("check", file).exit_code == 0
    refuted = tinygpu("prove", *SMALL, "smem_bytes <= 100000", "--out", file)
    assert refuted.exit_code == 1
    assert tinygpu("check", file).exit_code == 0


def test_statuses_and_json_say_which_answer_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(*words: object) -> tuple[int, Any]:
        result = tinygpu(*words, "--json")
        return result.exit_code, json.loads(result.stdout)

    status, tree = told("ask", *SMALL, "tile_n == 250")
    assert (status, tree["outcome"], tree["schedule"]) == (1, "excluded", None)
    assert tree["reasons"][0]["mend"].startswith("tile_n in 8, 16")
    status, tree = told("prove", *SMALL, "threads <= 512")
    assert (status, tree["outcome"], tree["not_asked"]) == (0, "proved", ["concurrency"])
    assert tree["count"] > 10**5
    wide = "tile_m * tile_n * tile_k * stages * consumers * in_flight * cluster_m * cluster_n"
    wide += " * store_n * store_stages * raster * persistent > 1"
    kept: dict[str, Answer] = {}

    def once(space: Space, wish: str) -> Answer:
        if wish not in kept:
            kept[wish] = ask(space, wish)
        return kept[wish]

    monkeypatch.setattr("tinygpu.space.questions.ask", once)  # told in two ways, asked once
    status, tree = told("ask", *SMALL, wide)
    assert (status, tree["outcome"], tree["schedule"]) == (3, "unknown", None)
    assert tinygpu("ask", *SMALL, wide).stdout.startswith("unknown: ")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["ask", *SMALL, "stagez > 5"], 'column 1, at "stagez"'),
        (["prove", *SMALL, "stages"], "is no condition"),
        (["prove", *SMALL], "claim: it is empty"),
        (["prove", "matmul", "m > 0", *SIZES, "--dtype", "bf16"], "choose one, a wish is about"),
        (
            ["prove", "matmul", "m > 0", "n > 0", "--machine", "hopper"],
            "EXPRESSION: matmul has none",
        ),
        (["prove", "elementwise", "a*x", "-i", 64], "claim: it is empty"),
        (["prove", *SMALL, "m > 0", "--device", "a100"], "a100 is sm_80"),
        (["ask", *SMALL, "m > 0", "--fix", "stages=99"], "no value 99"),
    ],
)
def test_mistakes_are_one_line(words: list[object], told: str) -> None:
    assert told in complaint(tinygpu(*words))


def test_an_empty_search_says_what_ask_says() -> None:
    fix = ["--fix", "tile_m=256", "--fix", "consumers=1", "--fix", "tile_n=256"]
    line = complaint(tinygpu("search", "matmul", *SIZES, "--machine", "hopper", *fix))
    asked = tinygpu("ask", "matmul", *SIZES, "--machine", "hopper", *fix)
    assert asked.exit_code == 1
    reasons = re.findall(r"^  (fix|law)  +(\S+?)[: ]", asked.stdout, re.MULTILINE)
    assert reasons == [("fix", "tile_m"), ("fix", "tile_n"), ("law", "accumulators")]
    assert "with tile_m = 256, tile_n = 256 no schedule of hopper" in line
    assert "keeps accumulators; sums leave" in line
    assert "lower tile_n or tile_m" in line
