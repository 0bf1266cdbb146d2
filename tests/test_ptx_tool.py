"""``tinygpu ptx``: options, statuses, JSON, SARIF; its package alone; texts that are nearly PTX."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.ptx_fuzz import mutated
from tests.test_ptx_twins import TWINS
from tinygpu.cli import app
from tinygpu.codegen.emulator import Memory, Module, check, launch
from tinygpu.codegen.emulator.checking import C_TYPES, Order, argument, orders, sarif
from tinygpu.codegen.emulator.sources import Source, sources
from tinygpu.codegen.emulator.values import TYPES
from tinygpu.errors import EmulatorError, LaunchError, TinyGpuError

RACE, LINE = TWINS["no barrier between warps"].text(faulty=True)
GOOD, _ = TWINS["no barrier between warps"].text(faulty=False)
SAME, _ = TWINS["several warps store the same value"].text(faulty=True)
ARRAYS = ("--arg", "x=u32[128]", "--arg", "y=u32[128]", "--block", "64")
TEXTS = [t.text(faulty=f)[0] for t in TWINS.values() for f in (True, False)]


def tool(folder: Path, text: str, *options: str) -> tuple[int, str]:
    (folder / "k.ptx").write_text(text, encoding="utf-8")
    done = CliRunner().invoke(app, ["ptx", str(folder / "k.ptx"), *options])
    return done.exit_code, done.output


@pytest.mark.parametrize(("text", "status"), [(GOOD, 0), (RACE, 1), (SAME, 3)])
def test_status_by_severity(tmp_path: Path, text: str, status: int) -> None:
    code, out = tool(tmp_path, text, *ARRAYS)
    assert code == status, out
    assert "orders late, early, random:0" in out
    code, out = tool(tmp_path, text, *ARRAYS, "--json", "--order", "late,random:3")
    tree = json.loads(out)
    assert (code, tree["status"], tree["kernel"]) == (status, status, "k")
    assert tree["orders"] == ["late", "random:0", "random:1", "random:2"]
    assert bool(tree["findings"]) == bool(status)


def test_findings_as_json_and_sarif(tmp_path: Path) -> None:
    """Each has its line, the other party's, who, where and how often."""
    out = tool(tmp_path, RACE, *ARRAYS, "--json", "--sarif", str(tmp_path / "o.sarif"))[1]
    [finding] = json.loads(out)["findings"]
    assert (finding["kind"], finding["line"], finding["severity"]) == ("race", LINE, "error")
    assert (finding["cta"], finding["thread"], finding["address"]) == (0, 0, 128)
    [run] = json.loads((tmp_path / "o.sarif").read_text(encoding="utf-8"))["runs"]
    [result] = run["results"]
    assert (result["ruleId"], result["level"]) == ("race", "error")
    place = result["locations"][0]["physicalLocation"]
    assert place["region"] == {"startLine": LINE}
    assert place["artifactLocation"] == {"uri": str(tmp_path / "k.ptx")}
    [other] = result["relatedLocations"]
    assert other["physicalLocation"]["region"]["startLine"] == finding["other_line"]
    assert run["tool"]["driver"]["rules"] == [{"id": "race"}]


def located(text: str) -> str:
    """The text as nvcc's -lineinfo writes it: of what both parties of a race come from."""
    rows = [
        row for number, old in enumerate(text.split("\n"), 1)
        for row in ([f"\t.loc\t1 {number + 100} 7, function_name $L__info_string0", old]
                    if ".shared." in old and ";" in old and ".align" not in old else [old])
    ]  # fmt: skip
    return "\n".join([*rows, '\t.file\t1 "/work/ring, one.cu"'])


def test_findings_stand_at_lines_of_the_source(tmp_path: Path) -> None:
    """In text, JSON, SARIF and annotations; where nothing says it, at those of the text."""
    text = located(RACE)
    code, out = tool(tmp_path, text, *ARRAYS, "--json", "--sarif", str(tmp_path / "o.sarif"))
    [finding] = json.loads(out)["findings"]
    source, other = finding["source"], finding["other_source"]
    assert code == 1
    assert source == {"file": "/work/ring, one.cu", "line": LINE + 100, "column": 7}
    assert other["line"] < source["line"]
    [result] = json.loads((tmp_path / "o.sarif").read_text(encoding="utf-8"))["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "/work/ring, one.cu"}
    assert place["region"] == {"startLine": LINE + 100, "startColumn": 7}
    related = [one["physicalLocation"]["region"]["startLine"] for one in result["relatedLocations"]]
    assert related == [finding["line"], other["line"], finding["other_line"]]
    said = f"(from /work/ring, one.cu:{LINE + 100}:7 and /work/ring, one.cu:{other['line']}:7)"
    assert said in " ".join(tool(tmp_path, text, *ARRAYS)[1].split())
    code, out = tool(tmp_path, text, *ARRAYS, "--annotations", "github")
    assert code == 1
    assert out.startswith(f"::error file=/work/ring%2C one.cu,line={LINE + 100},col=7,title=race::")
    code, out = tool(tmp_path, RACE, *ARRAYS, "--annotations", "github")
    assert f"k.ptx,line={LINE},title=race::" in out
    code, out = tool(tmp_path, GOOD, *ARRAYS, "--annotations", "github")
    assert (code, "::" in out) == (0, False)
    assert "nothing found" in out
    assert tool(tmp_path, GOOD, *ARRAYS, "--annotations", "gitlab")[0] == 2


def test_a_place_holds_until_the_next_one() -> None:
    """Or to the end of its function; line 0 and files that nobody names say nothing."""
    text = """.visible .entry one() {
.loc 1 3 0
mov.u32 %r0, 1;
// a remark
mov.u32 %r1, 1;
.loc 2 4 1
mov.u32 %r2, 1;
.loc 1 0 1
mov.u32 %r3, 1;
.loc 1 9 2
ret;
}
.func two() {
ret;
}
.file 1 "a.cu" , 1700000000, 99"""
    found = sources(text)
    assert {n: str(at) for n, at in found.items()} == {
        3: "a.cu:3", 4: "a.cu:3", 5: "a.cu:3", 11: "a.cu:9:2", 12: "a.cu:9:2",
    }  # fmt: skip
    assert found[3] == Source("a.cu", 3, 0)
    assert not sources(GOOD)


def test_arrays_have_types_of_c_and_random_numbers() -> None:
    for name, kind in C_TYPES.items():
        of_c, of_ptx = np.asarray(argument(f"{name}[3]")), np.asarray(argument(f"{kind}[3]"))
        assert of_c.dtype == TYPES[kind] == of_ptx.dtype
    drawn = (argument(f"int[1000]:random{seed}") for seed in ("", ":0", ":1"))
    whole, same, other = map(np.asarray, drawn)
    assert (whole.min(), whole.max()) == (0, 99)
    assert np.array_equal(whole, same)
    assert not np.array_equal(whole, other)
    for kind in ("float", "half", "bfloat16", "double", "e4m3"):
        numbers = np.asarray(argument(f"{kind}[4000]:random")).astype(np.float64)
        assert abs(float(np.mean(numbers))) < 0.1
        assert 0.9 < float(np.std(numbers)) < 1.1
    for text in ("f16x2[4]:random", "b32[4]:random", "b128[4]:random", "pred[4]:random"):
        with pytest.raises(LaunchError, match="only integers and floating point"):
            argument(text)
    for text in ("f32[4]:normal", "f32[4]:random:", "f32[4]:random:x"):
        with pytest.raises(LaunchError, match="are known"):
            argument(text)


def test_arrays_come_from_files_and_go_there(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(128, dtype=np.uint32))
    arguments = ("--arg", f"x={tmp_path / 'x.npy'}", "--arg", "y=u32[128]", "--block", "64")
    code, out = tool(tmp_path, GOOD, *arguments, "--save", f"y={tmp_path / 'y.npy'}")
    assert code == 0, out
    got = np.load(tmp_path / "y.npy")[:64]
    np.testing.assert_array_equal(got, np.arange(64) ^ 32)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--arg", "x"), "give NAME=VALUE"),
        (("--arg", "x=u32[4]"), "1 arguments for its parameters: x, y"),
        (("--arg", "x=q7[4]", "--arg", "y=1"), "a type of PTX or C with a size"),
        (("--arg", "x=no.npy", "--arg", "y=1"), "cannot be read"),
        ((*ARRAYS, "--order", "sometimes"), "late, early and random:20 are known"),
        ((*ARRAYS, "--grid", "0"), "at least 1 each"),
        ((*ARRAYS, "--grid", "a"), "one to three numbers"),
        ((*ARRAYS, "--block", "2048"), "1024 at most"),
        ((*ARRAYS, "--cluster", "32", "--grid", "32"), "cluster: 32 CTAs; 16 are the most"),
        ((*ARRAYS, "--smem", "300000"), "a CTA of sm_100a has 232448 B"),
        ((*ARRAYS, "--kernel", "no"), "kernel no: the module has k"),
        ((*ARRAYS, "--save", "z=z.npy"), "z is no array"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, options: tuple[str, ...], says: str) -> None:
    code, out = tool(tmp_path, GOOD, *options)
    assert code == 2
    assert out.startswith("error: ")
    assert says in out
    assert out.count("\n") == 1


def test_orders_and_arguments() -> None:
    assert orders("late, random:2") == (Order("late"), Order("random", 0), Order("random", 1))
    assert argument("0x10") == 16
    assert argument("-2.5") == -2.5
    for text in ("random:0", "late:3", ""):
        with pytest.raises(LaunchError, match="order"):
            orders(text)


def test_results_that_depend_on_the_order() -> None:
    """A load from what a copy has not brought yet gives another value in another order."""
    text, _ = TWINS["cp.async of another lane"].text(faulty=False)
    text = text.replace("cp.async.wait_all;", "").replace(
        "cp.async", "st.shared.u32 [%own], 1; cp.async"
    )
    arrays = {"x": np.arange(5, 133, dtype=np.uint32), "y": np.zeros(128, np.uint32)}
    found = check(text, "k", 1, 32, arrays, orders=orders("late,early"))
    assert (found.differing, found.status) == (("y",), 1)
    assert arrays["y"].any() == np.False_  # the caller's arrays stay as they were
    assert sarif(found, "k.ptx")["version"] == "2.1.0"


def test_the_package_stands_alone() -> None:
    """It needs NumPy, ml_dtypes and the package's errors, nothing else of the package."""
    code = """
import sys
class Alone:
    def find_spec(self, name, path=None, target=None):
        allowed = ("tinygpu.codegen.emulator", "tinygpu.errors", "tinygpu.codegen", "tinygpu")
        ours = name.startswith("tinygpu") and not (
            name in allowed or name.startswith("tinygpu.codegen.emulator."))
        if ours or name.split(".")[0] in ("z3", "typer", "rich", "matplotlib", "networkx"):
            raise ImportError(name)
sys.meta_path.insert(0, Alone())
from tinygpu.codegen.emulator import check
print(check(open(0).read(), "k", 1, 64, {"x": __import__("numpy").zeros(128, "u4"),
      "y": __import__("numpy").zeros(128, "u4")}).status)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], input=RACE, capture_output=True, text=True, check=True
    )
    assert done.stdout == "1\n"


@settings(max_examples=300, deadline=5000, derandomize=True)
@given(st.integers(0, len(TEXTS) - 1), st.integers(0, 1 << 30))
def test_no_text_gives_a_traceback(which: int, seed: int) -> None:
    """A text that is nearly PTX runs, or is an error that says what cannot be read."""
    memory = Memory()
    arrays = [memory.allocate(np.zeros(128, np.uint32)) for _ in range(2)]
    completion = ("late", "early", "random")[seed % 3]
    try:
        module = Module.parse(mutated(TEXTS[which], seed))
        launch(module, "k", 1, 64, arrays, memory, completion=completion, limit=20_000)
    except EmulatorError:
        raise
    except TinyGpuError:
        pass
