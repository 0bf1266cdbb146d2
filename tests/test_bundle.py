"""A bundle: what is written is read, what was altered is refused, and each shape gets its kernel.

Three real kernels that take the same arrays: simt takes every size, the two of hopper even n and
k in eights.
"""

from __future__ import annotations

import ast
import builtins
import functools
import json
import os
import shutil
import subprocess
import symtable
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fake_gpu import ERRORS, Array, CupyArray, Gpu
from tests.sample import draws
from tests.test_bad_input import JSON, mutated
from tinygpu.checker.written import verified
from tinygpu.cli.given import certificate_of
from tinygpu.codegen.run import bundle as writing
from tinygpu.codegen.run.arguments import contract_of
from tinygpu.codegen.run.assemble import ptxas_version
from tinygpu.codegen.run.build import Built, build_many
from tinygpu.codegen.run.bundle import (
    BundledKernel,
    bundle_parts,
    loader_text,
    refuse_other,
    write_bundle,
)
from tinygpu.codegen.runtime import bundle as runtime
from tinygpu.codegen.runtime.bundle import BUNDLE_FORMAT, FIRST_CALL, Bundle, load_bundle, sealed
from tinygpu.codegen.runtime.contract import Contract
from tinygpu.codegen.runtime.driver import is_lost
from tinygpu.devices.device import load_device
from tinygpu.errors import LaunchError, StoreError
from tinygpu.machines import MACHINES, ampere, blackwell, hopper, simt
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.space.space import Space
from tinygpu.term.machine import Chosen, Machine
from tinygpu.term.operation import Operation, Problem, elementwise, matmul, rmsnorm, softmax
from tinygpu.term.program import Program
from tinygpu.term.text import parse, text_of

OPERATION = matmul("f16", layout="nt")
THREADS = (1024, 160, 384)  # of a CTA of each kernel: so a launch says which kernel it is of
N, K = 64, 128
RULES = {
    "measured": [
        {"at": [N, K], "upto": [16, 100, 512], "kernels": [1, 2, 1]},
        {"at": [256, K], "upto": [512], "kernels": [2]},
    ],
    "intervals": [
        {"at": [N, K], "upto": [7, 512], "kernels": [0, 1]},
        {"at": [256, K], "upto": [512], "kernels": [0]},
    ],
}
SHAPES = [
    {"m": m, "n": n, "k": K, "layer": "", "kernel": kernel}
    for m, n, kernel in ((1, N, 1), (100, N, 2), (512, N, 1), (1, 256, 2), (512, 256, 2))
]
MANIFEST = {
    "operation": str(OPERATION),
    "along": "m",
    "axes": ["m", "n", "k"],
    "rule": "measured",
    "rules": RULES,
    "shapes": SHAPES,
}
A, B, C = (1 << 46, 1 << 47, 1 << 48)  # beyond those that are given out


def programs() -> list[tuple[str, Program]]:
    points: list[tuple[Machine, Any]] = [
        (Simt(), LADDER["naive"]),
        (Hopper(), STARTS["plain"]),
        (Hopper(), STARTS["two consumers"]),
    ]
    return [(m.name, m.program(OPERATION, Chosen(values))) for m, values in points]


@functools.cache
def parts() -> dict[str, bytes]:
    """The files of a bundle."""
    names, terms = zip(*programs(), strict=True)
    members = []
    for i, built in enumerate(build_many([(term, "sm_90a", None) for term in terms])):
        assert isinstance(built, Built)
        certificate = certificate_of(terms[i])[0] if i else ""  # the first one has none
        members.append(
            BundledKernel(
                f"k{i:02}", names[i], contract_of(terms[i]), built, f'{{"n": {i}}}',
                ((text_of(terms[i]), certificate),),
            )
        )  # fmt: skip
    return bundle_parts(members, MANIFEST)


def tree_of(files: dict[str, bytes]) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(files["bundle.json"])
    return tree


def altered(**changes: Any) -> dict[str, bytes]:
    """The files with another manifest, which agrees with its hash."""
    tree = sealed({**tree_of(parts()), **changes})
    return {**parts(), "bundle.json": json.dumps(tree).encode()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "bundle", parts())


def files_in(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def refused(path: Path, **how: Any) -> str:
    """The one line of a bundle that is not read."""
    with pytest.raises(LaunchError) as error:
        load_bundle(path, **how)
    said = str(error.value)
    assert said.startswith(f"bundle {path}: ")
    assert "\n" not in said
    return said


# Written and read.


@pytest.mark.parametrize("name", ["bundle", "bundle.zip", "deep/er/bundle", "deep/b.zip"])
def test_what_is_written_is_read(name: str, tmp_path: Path) -> None:
    """A folder or a .zip, wherever it is moved: the same manifest, code and contracts."""
    written = write_bundle(tmp_path / name, parts())
    path = written.rename(tmp_path / f"moved{written.suffix}")
    bundle = load_bundle(path)
    assert bundle.tree == tree_of(parts())
    assert bundle.code == {n: data for n, data in parts().items() if n != "bundle.json"}
    assert bundle.rule == "measured"
    assert [f.contract for f in bundle.functions] == [contract_of(term) for _, term in programs()]
    assert [f.contract.threads for f in bundle.functions] == list(THREADS)
    assert [f.code for f in bundle.functions] == [parts()[f"kernels/k0{i}.cubin"] for i in range(3)]
    shutil.rmtree(tmp_path / "deep", ignore_errors=True)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_bundle_is_what_its_parts_are(folder: Path, tmp_path: Path) -> None:
    """Nothing lies beside them, all may be read, and a .zip of them is the same at each writing."""
    assert files_in(folder) == parts()
    assert oct(folder.stat().st_mode & 0o777) == "0o755"
    first = write_bundle(tmp_path / "a.zip", parts()).read_bytes()
    assert write_bundle(tmp_path / "b.zip", parts()).read_bytes() == first
    with zipfile.ZipFile(tmp_path / "a.zip") as file:
        assert {name: file.read(name) for name in file.namelist()} == parts()


def test_a_bundle_holds_terms_and_certificates(folder: Path) -> None:
    """Each kernel's term, and its certificate if it has one, which the checker accepts."""
    certified = [False, True, True]
    for kernel, has, (_, program) in zip(
        tree_of(parts())["kernels"], certified, programs(), strict=True
    ):
        (term,), (certificate,) = kernel["terms"], kernel["certificates"]
        assert parse((folder / term).read_text()) == program
        assert bool(certificate) is has
        if certificate:
            assert verified(program, (folder / certificate).read_text()).accepted
    path = folder / certificate
    path.write_text(path.read_text().replace("true", "false", 1))
    assert "was altered" in refused(folder)


@pytest.mark.parametrize("name", ["bundle", "bundle.zip"])
def test_a_bundle_takes_the_place_of_one(name: str, tmp_path: Path) -> None:
    """Whole: no file of the earlier one stays, and nothing lies beside it."""
    path = tmp_path / name
    write_bundle(path, {**parts(), "kernels/k99.ptx": b"of the earlier one"})
    write_bundle(path, parts())
    assert load_bundle(path).code.keys() == parts().keys() - {"bundle.json"}
    assert path.is_file() or files_in(path) == parts()
    assert [p.name for p in tmp_path.iterdir()] == [name]


def lying(path: Path, what: str) -> None:
    match what:
        case "a folder of something":
            path.mkdir()
            (path / "mine.txt").write_text("mine")
        case "a folder named .zip":
            path.mkdir()
        case "a .zip of something":
            with zipfile.ZipFile(path, "w") as file:
                file.writestr("mine.txt", "mine")
        case _:
            path.write_text("mine")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("bundle", "a folder of something"),
        ("bundle", "a file"),
        ("b.zip", "a folder named .zip"),
        ("b.zip", "a file"),
        ("b.zip", "a .zip of something"),
    ],
)
def test_something_else_is_not_replaced(name: str, what: str, tmp_path: Path) -> None:
    """Not a byte of it is changed, and nothing is left beside it."""
    path = tmp_path / name
    lying(path, what)
    before = files_in(tmp_path)
    for do in (refuse_other, lambda p: write_bundle(p, parts())):
        with pytest.raises(StoreError, match=r"give a \.zip|choose another --out"):
            do(path)
    assert files_in(tmp_path) == before
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_an_empty_folder_may_be_replaced_but_not_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no name to put the bundle under."""
    (tmp_path / "empty").mkdir()
    assert files_in(write_bundle(tmp_path / "empty", parts())) == parts()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(StoreError, match="replaced whole"):
        write_bundle(Path(), parts())


@pytest.mark.parametrize("name", ["bundle", "bundle.zip"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_what_fails_leaves_the_earlier_bundle(
    name: str, error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whichever step it stops; nothing is left beside it."""
    path = write_bundle(tmp_path / name, parts())
    steps: list[tuple[Any, str]] = [
        (tempfile, "mkdtemp"), (Path, "write_bytes"), (Path, "chmod"), (Path, "rename"),
        (os, "replace"),
    ]  # fmt: skip
    stopped = 0
    for allowed in range(40):
        calls: list[str] = []

        def stepping(
            real: Callable[..., Any], allowed: int = allowed, calls: list[str] = calls
        ) -> Callable[..., Any]:
            def called(*given: Any, **named: Any) -> Any:
                calls.append(real.__name__)
                if len(calls) == allowed + 1:
                    raise error
                return real(*given, **named)

            return called

        with monkeypatch.context() as patched:
            for module, name_of in steps:
                patched.setattr(module, name_of, stepping(getattr(module, name_of)))
            try:
                write_bundle(path, altered(note=1))
            except error:
                stopped += 1
        if len(calls) <= allowed:
            break
        assert load_bundle(path).tree == tree_of(parts()), allowed
        assert [p.name for p in tmp_path.iterdir()] == [name], allowed
    assert stopped == allowed >= 2
    assert load_bundle(path).tree["note"] == 1


# Altered.


def read_or_refused(path: Path) -> Bundle | None:
    """A bundle, or none where it is refused: in one line, with no other error."""
    try:
        return load_bundle(path)
    except LaunchError as error:
        said = str(error)
    assert said.startswith(("bundle ", "contract: "))
    assert "\n" not in said
    return None


def reads_the_same(path: Path) -> bool:
    """Whether it is read as what was written; else it is refused."""
    bundle = read_or_refused(path)
    if bundle is None:
        return False
    assert bundle.tree == tree_of(parts())
    assert bundle.code == {n: data for n, data in parts().items() if n != "bundle.json"}
    return True


@pytest.mark.parametrize("name", sorted([*(f"k/k0{i}" for i in range(3)), "bundle", "loader"]))
def test_every_altered_byte_is_seen(name: str, folder: Path) -> None:
    """In a sample of all files; only a blank of the manifest may become another."""
    for path in sorted(folder.rglob("*")):
        if path.is_dir() or path.stem != name.rpartition("/")[2]:
            continue
        whole = path.read_bytes()
        rng = np.random.default_rng(len(whole))
        places = {0, len(whole) - 1, *rng.integers(0, len(whole), 12).tolist()}
        for place in places:
            for flip in (1, 0x20, 0xFF):
                path.write_bytes(whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1 :])
                same = reads_the_same(folder)
                assert not same or (path.suffix == ".json" and whole[place : place + 1].isspace())
        for length in (0, 1, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:length])
            assert not reads_the_same(folder)
        path.write_bytes(whole + b"x")
        assert not reads_the_same(folder)
        path.unlink()
        assert f"{str(path.relative_to(folder))!r} is missing" in refused(folder)
        path.write_bytes(whole)
    assert reads_the_same(folder)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    path = write_bundle(tmp_path_factory.mktemp("packed") / "b.zip", parts())
    return path, path.read_bytes()


@settings(max_examples=draws(20, 50))
@given(st.data())
def test_an_altered_zip_is_read_the_same_or_refused(
    packed: tuple[Path, bytes], data: st.DataObject
) -> None:
    """Bytes changed or cut away, among them those that say how it is packed and how long it is."""
    path, whole = packed
    headers = [i for i in range(len(whole)) if whole[i : i + 2] == b"PK"]
    place = data.draw(
        st.integers(0, len(whole) - 1)
        | st.builds(int.__add__, st.sampled_from(headers), st.integers(0, 50))
    )
    place = min(place, len(whole) - 1)
    changed = bytearray(whole)
    if data.draw(st.integers(0, 4)):
        changed[place] = data.draw(st.integers(0, 255))
    else:
        del changed[place : place + data.draw(st.integers(1, 2000))]
    path.write_bytes(changed)
    reads_the_same(path)


def test_a_zip_that_says_that_it_is_encrypted(packed: tuple[Path, bytes]) -> None:
    """Or packed in another way: one line, whatever Python's zipfile raises."""
    path, whole = packed
    central = whole.index(b"PK\1\2")
    for place, byte in ((8, 1), (10, 12), (10, 14), (10, 99)):
        changed = bytearray(whole)
        changed[central + place] = byte
        path.write_bytes(changed)
        assert "copy it again" in refused(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "damaged"),
        (b"null", "damaged"),
        (b"5", "damaged"),
        (b"[]", "damaged"),
        (b"[1, 2]", "damaged"),
        (b'"format"', "damaged"),
        (b"{}", "damaged"),
        (b"{", "damaged"),
        (b"[" * 100_000, "damaged"),
        (b'{"a":' * 100_000, "damaged"),
        (b"9" * 5000, "damaged"),
        (b"\xff\xfe\x00", "damaged"),
        (b'{"format": "1"}', "damaged"),
        (b'{"format": null}', "damaged"),
        (b'{"format": 1}', "damaged"),
        (b'{"format": 1, "sha256": ""}', "altered"),
        (b'{"format": 1e999}', "newer tinygpu"),
        (b'{"format": %d}' % (BUNDLE_FORMAT + 1), f"this loader reads {BUNDLE_FORMAT}; use the"),
    ],
)
def test_a_manifest_that_is_none(text: bytes, said: str, folder: Path) -> None:
    (folder / "bundle.json").write_bytes(text)
    assert said in refused(folder)


def test_a_newer_format_is_told_before_anything_else(folder: Path) -> None:
    """Its hash and files may be made in another way."""
    (folder / "bundle.json").write_text(json.dumps({"format": 2, "other": "fields"}))
    assert "use the loader.py that lies in the bundle" in refused(folder)


def test_what_is_no_bundle(folder: Path, tmp_path: Path) -> None:
    assert refused(tmp_path / "none").endswith("there is none")
    (tmp_path / "file").write_bytes(b"x")
    assert "it is no .zip, or a damaged one" in refused(tmp_path / "file")
    assert "'bundle.json' is missing" in refused(tmp_path)
    said = refused(folder, rule="fastest")
    assert "no rule 'fastest'; known are 'measured', 'intervals', 'first call'" in said


@settings(max_examples=draws(20, 50))
@given(st.data())
def test_a_changed_manifest_is_refused(packed: tuple[Path, bytes], data: st.DataObject) -> None:
    """Whatever part of it is taken out, changed or put elsewhere: its hash says so."""
    tree = tree_of(parts())
    changed = mutated(tree, data)
    folder = packed[0].with_name("changed")
    write_bundle(folder, {**parts(), "bundle.json": json.dumps(changed).encode()})
    assert reads_the_same(folder) == (json.dumps(changed) == json.dumps(tree))


@settings(max_examples=draws(32, 80))
@given(st.data())
@example(None)
def test_a_changed_manifest_with_its_hash_is_read_or_refused(
    packed: tuple[Path, bytes], data: st.DataObject | None
) -> None:
    """One of a wrong shape, which agrees with its hash, is a LaunchError too: nothing else."""
    tree = tree_of(parts())
    changed = mutated(tree, data) if data else {**tree, "rules": {"\n": []}, "rule": "\n\n"}
    folder = packed[0].with_name("sealed")
    write_bundle(folder, {**parts(), "bundle.json": json.dumps(sealed(changed)).encode()})
    read_or_refused(folder)


@given(JSON, st.sampled_from(["kernels", "rules", "files", "axes", "along", "rule", "shapes"]))
def test_a_field_of_any_json(packed: tuple[Path, bytes], part: Any, name: str) -> None:
    folder = packed[0].with_name("field")
    write_bundle(folder, altered(**{name: part}))
    read_or_refused(folder)


@given(JSON)
def test_any_json_is_no_contract(tree: Any) -> None:
    whole = contract_of(programs()[0][1]).tree()
    for given_tree in (tree, {"name": tree}, {**whole, "arguments": [tree]}, {**whole, "x": tree}):
        with pytest.raises(LaunchError, match="contract: ") as error:
            Contract.of(given_tree)
        assert "\n" not in str(error.value)


# Contracts.

FP16, TF32 = matmul("f16", layout="nt"), matmul("tf32", layout="nt")
POINTS: list[tuple[str, Operation, Any]] = [
    *(("simt", matmul(), values) for values in simt.LADDER.values()),
    *(("simt", FP16, values) for values in simt.LADDER.values()),
    *(("ampere", matmul("bf16", "f32", "nt"), values) for values in ampere.STARTS.values()),
    *(("ampere", TF32, values) for values in ampere.STARTS.values()),
    *(("hopper", FP16, values) for values in hopper.STARTS.values()),
    *(("blackwell", FP16, values) for values in blackwell.STARTS.values()),
    ("simt", matmul("f64", layout="tn"), LADDER["naive"]),
    ("hopper", matmul("bf16", layout="nt", bias=True, activation="gelu"), STARTS["plain"]),
    ("hopper", matmul("bf16", layout="nt", batched=True), STARTS["cluster"]),
]
SAMPLED = {
    "elementwise": elementwise("x * sigmoid(a*x) + z"),
    "rmsnorm": rmsnorm(),
    "softmax": softmax(),
}


@pytest.mark.parametrize("number", range(len(POINTS)))
def test_a_contract_is_its_json(number: int) -> None:
    """Of every named point: what is read again is the same value, and hashable."""
    name, operation, values = POINTS[number]
    same_again(contract_of(MACHINES[name].program(operation, Chosen(values))))


@pytest.mark.parametrize("name", SAMPLED)
def test_a_contract_of_no_matmul_is_its_json(name: str) -> None:
    """Of schedules as they come; bundles may hold other operations one day."""
    operation = SAMPLED[name]
    machine = next(m for m in MACHINES.values() if operation.name in m.operations)
    problem = Problem.of(operation, **dict.fromkeys(operation.axes, 512))
    space = Space(machine, problem, load_device("h200"))
    for schedule in space.sample(np.random.default_rng(0), 5):
        program = schedule.program(machine, operation)
        same_again(contract_of(program, problem.sizes if program.specialised else None))


def same_again(contract: Contract) -> None:
    again = Contract.of(json.loads(json.dumps(contract.tree())))
    assert again == contract
    assert hash(again) == hash(contract)
    assert repr(again) == repr(contract)


# Calls.


def arrays(m: int, n: int = N, k: int = K, **how: Any) -> tuple[CupyArray, CupyArray, CupyArray]:
    """a[m,k], b[n,k] and c[m,n] at places of their own; ``how`` is of a alone."""
    a = CupyArray((m, k), np.float16, at=A, **how)
    return a, CupyArray((n, k), np.float16, at=B), CupyArray((m, n), np.float16, at=C)


def opened(**how: Any) -> Bundle:
    code = {name: data for name, data in parts().items() if name != "bundle.json"}
    return Bundle(tree_of(parts()), code, how.get("rule", "measured"), how.get("fallback"))


def kernels_of(fake: Gpu) -> list[int]:
    """The kernels that were launched since the last call, by their threads."""
    found = [THREADS.index(told.threads) for told in fake.launched()]
    fake.log.clear()
    return found


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        ("measured", {1: 1, 16: 1, 17: 2, 100: 2, 101: 1, 512: 1, 513: 1, 10**6: 1}),
        ("intervals", {1: 0, 7: 0, 8: 1, 512: 1, 10**6: 1}),
    ],
)
def test_the_rule_gives_the_kernel(fake: Gpu, rule: str, wanted: dict[int, int]) -> None:
    """At the ends of its intervals, and beyond the last; ``choose`` and ``which`` say the same."""
    bundle = opened(rule=rule)
    for m, kernel in wanted.items():
        a, b, c = arrays(m)
        assert bundle(a, b, out=c) is c
        assert kernels_of(fake) == [kernel]
        assert bundle.choose(m=m, n=N, k=K) == kernel
        assert bundle.which(m=m, n=N, k=K)["kernel"] == f"k0{kernel}"


def test_the_output_is_made_where_none_is_given(fake: Gpu) -> None:
    """Of the operation's shape and type, on the stream that is asked for."""
    a, b, _ = arrays(20)
    c = opened()(a, b, stream=11)
    assert (c.shape, c.dtype) == ((20, N), np.float16)
    assert [told.stream for told in fake.launched()] == [11]


def test_which_says_the_interval() -> None:
    """Its ends are those where another kernel begins; the last one has no end."""
    bundle = opened()
    for m, (kernel, interval) in {
        1: ("k01", [1, 16]), 16: ("k01", [1, 16]), 17: ("k02", [17, 100]), 100: ("k02", [17, 100]),
        101: ("k01", [101, None]), 9999: ("k01", [101, None]),
    }.items():  # fmt: skip
        wanted = {"kernel": kernel, "number": int(kernel[1:]), "rule": "measured"}
        assert bundle.which(m=m, n=N, k=K) == {**wanted, "interval": interval}
    assert bundle.which(m=3, n=256, k=K)["interval"] == [1, None]
    for wrong in ({"m": 1, "n": N}, {"m": 0, "n": N, "k": K}, {"m": 1, "n": N, "k": K, "j": 1}):
        with pytest.raises(LaunchError, match="give m, n, k, each at least 1"):
            bundle.which(**wrong)


@given(st.data())
def test_a_table_is_its_intervals(data: st.DataObject) -> None:
    """Of any ends and kernels: the first whose end is not below m; ``which`` covers its run."""
    upto = sorted(data.draw(st.sets(st.integers(1, 40), min_size=1, max_size=6)))
    mine = [data.draw(st.integers(0, 2)) for _ in upto]
    bundle = opened()
    bundle._table = {(N, K): (upto, mine)}
    every = {m: bundle.choose(m=m, n=N, k=K) for m in range(1, 50)}
    for m, kernel in every.items():
        at = next((i for i, end in enumerate(upto) if m <= end), len(upto) - 1)
        assert kernel == mine[at]
        low, high = bundle.which(m=m, n=N, k=K)["interval"]
        inside = range(low, (high or 49) + 1)
        assert m in inside
        assert {every[x] for x in inside} == {kernel}
        assert low == 1 or every[low - 1] != kernel
        assert high is None or every[high + 1] != kernel


def test_other_sizes_go_to_the_nearest_shape(fake: Gpu) -> None:
    """By the sum of distances of logarithms, in all sizes; an interval is of a known n and k."""
    bundle = opened()
    for m, n, k, at in (
        (1, 96, K, 0),  # 1.5 times 64, and 2.7 times less than 256
        (90, 80, 256, 1),
        (1, 192, K, 3),
        (4096, 4096, 4096, 4),
        (600, 100, 8, 2),
    ):
        shape = SHAPES[at]
        wanted = {axis: shape[axis] for axis in "mnk"}
        told = bundle.which(m=m, n=n, k=k)
        assert told["nearest"] == wanted
        assert "interval" not in told
        assert bundle.choose(m=m, n=n, k=k) == told["number"] == shape["kernel"]
        a, b, c = arrays(m, n, k)
        bundle(a, b, out=c)
        assert kernels_of(fake) == [shape["kernel"]]


def test_an_illegal_kernel_is_passed_over(fake: Gpu) -> None:
    """The next nearest that can take the arrays serves them, at each call."""
    bundle = opened()
    for changed in ({"n": N + 1}, {"k": K + 1}, {"strides": (2 * K + 2, 2)}):
        a, b, c = arrays(50, **changed)
        for _ in range(2):
            bundle(a, b, out=c)
        assert kernels_of(fake) == [0, 0], changed
    a, b, c = arrays(50)
    bundle(a, b, out=c)
    assert kernels_of(fake) == [2]


def test_the_order_of_those_that_are_tried() -> None:
    """The rule's, then the kernels of the nearest shapes, then all others."""
    bundle = opened()
    assert list(bundle._in_order({"m": 50, "n": N, "k": K})) == [2, 1, 0]
    assert list(bundle._in_order({"m": 1, "n": N, "k": K})) == [1, 2, 0]
    other = opened(rule=FIRST_CALL)
    assert list(other._in_order({"m": 500, "n": 250, "k": K})) == [2, 1, 0]


def test_what_no_kernel_takes(fake: Gpu) -> None:
    """The first choice's reason is told, or the fallback is called with all that was given."""
    a, b, c = arrays(20)
    wide = CupyArray((20, K), np.float32, at=A)
    two = CupyArray((20, K), np.float16, at=A, device=1)
    for wrong, said in ((wide, "a: dtype f32, the kernel takes f16"), (two, "on devices")):
        with pytest.raises(LaunchError, match="none of 3 kernels takes these: .*" + said):
            opened()(wrong, b, out=c)
    long, b_odd, out = arrays(1 << 25, k=K + 1)  # too long for simt's indices, and odd for hopper
    with pytest.raises(LaunchError, match="none of 3 kernels takes these: vector: "):
        opened()(long, b_odd, out=out)
    calls: list[Any] = []

    def fallback(*inputs: Any, **named: Any) -> str:
        calls.append((inputs, named))
        return "its answer"

    bundle = opened(fallback=fallback)
    for _ in range(2):
        assert bundle(wide, b, out=c, stream=7) == "its answer"
    assert calls == [((wide, b), {"out": c, "stream": 7})] * 2
    assert bundle(a, b, out=c) is c
    assert kernels_of(fake) == [2]
    assert len(calls) == 2


def kernel_fails(fake: Gpu, bundle: Bundle, how: str) -> str:
    """Let kernel 2 fail in a way; return what the warning says of it."""
    match how:
        case "load":
            bundle.functions[2].code = b"no cubin"
            return "the driver does not load it"
        case "shared memory":
            contract = bundle.functions[2].contract
            bundle.functions[2].contract = replace(contract, smem_bytes=10**6)
            return "needs 1000000 B of shared memory"
        case "clusters":
            contract = bundle.functions[2].contract
            bundle.functions[2].contract = replace(contract, cluster=4, persistent=True)
            fake.driver.clusters = 0
            return "clusters of 4 CTAs"
        case "tensor map":
            codes, encode = iter([801]), fake.driver.cuTensorMapEncodeTiled
            fake.driver.cuTensorMapEncodeTiled = lambda *told: next(codes, 0) or encode(*told)
            return "cuTensorMapEncodeTiled: ERROR_801"
        case _:
            fake.driver.refuses = [701]
            return "launch failed (ERROR_701"


@pytest.mark.parametrize("how", ["load", "shared memory", "clusters", "tensor map", "launch"])
def test_a_kernel_that_fails_is_left_out(fake: Gpu, how: str) -> None:
    """The next nearest serves; a warning says so once, and the kernel is not tried again."""
    bundle = opened()
    said = kernel_fails(fake, bundle, how)
    a, b, c = arrays(50)
    with pytest.warns(RuntimeWarning) as warned:
        assert bundle(a, b, out=c) is c
    (text,) = (str(w.message) for w in warned)
    assert text.startswith("bundle: k02 does not run here: ")
    assert said in text
    assert text.endswith("; k01 serves instead")
    assert warned[0].filename == __file__
    assert kernels_of(fake) == [1]
    for m in (50, 51, 100):  # the same arrays, and others that kernel 2 would serve
        a, b, c = arrays(m)
        bundle(a, b, out=c)
        bundle(a, b, out=c)
    assert [kind for kind, *_ in fake.log if kind in ("load", "refused")] == []
    assert kernels_of(fake) == [1] * 6


def test_a_kernel_that_fails_later_is_left_out(fake: Gpu) -> None:
    """A start that is known fails: so do all others of this kernel."""
    bundle = opened()
    first, second = arrays(50), arrays(60)
    for a, b, c in (first, second):
        bundle(a, b, out=c)
    fake.driver.refuses = [701]
    with pytest.warns(RuntimeWarning, match=r"k02 does not run here: .*; k01 serves instead"):
        bundle(*first[:2], out=first[2])
    for a, b, c in (first, second):
        bundle(a, b, out=c)
    assert kernels_of(fake) == [2, 2, 1, 1, 1]


def test_no_kernel_is_left(fake: Gpu) -> None:
    """The fallback serves, and each failure is told; without one the first reason is raised."""
    a, b, c = arrays(50)
    fake.driver.refuses = [701, 702 + 100, 703 + 100]
    bundle = opened()
    for _ in range(2):  # nothing is tried a second time
        with pytest.raises(LaunchError, match=r"none of 3 kernels takes these: .*ERROR_701"):
            bundle(a, b, out=c)
    assert len(fake.of("refused")) == 3
    fake.driver.refuses = [701, 802, 803]
    bundle = opened(fallback=lambda *_, **__: "its answer")
    with pytest.warns(RuntimeWarning) as warned:
        assert bundle(a, b, out=c) == "its answer"
    assert len(warned) == 3
    assert all(str(w.message).endswith("; the fallback serves instead") for w in warned)
    assert bundle(a, b, out=c) == "its answer"


@pytest.mark.parametrize("code", [400, 700, 719, 900])
def test_what_is_no_kernels_fault_is_raised_at_once(fake: Gpu, code: int) -> None:
    """A lost context, a wrong stream, a capture: no other kernel is tried, and none is left out."""
    for known in (False, True):
        bundle = opened(fallback=lambda *_, **__: None)
        a, b, c = arrays(50)
        if known:
            bundle(a, b, out=c)
        fake.driver.refuses = [code]
        with pytest.raises(LaunchError, match=ERRORS[code].decode()):
            bundle(a, b, out=c)
        assert not bundle._failed
        bundle(a, b, out=c)
        assert kernels_of(fake) == [2] * (1 + known)
    assert is_lost(ERRORS[code].decode()) == (code in (700, 719))


def test_the_first_call_leaves_out_what_fails(timed: Gpu) -> None:
    """The others are timed, and the fastest of them serves."""
    bundle = opened(rule=FIRST_CALL)
    a, b, c = arrays(50)
    timed.driver.refuses = [701]
    with pytest.warns(RuntimeWarning, match=r"k02 .*; k01 serves instead"):
        bundle(a, b, out=c)
    assert kernels_of(timed) == [1] * 6 + [0] * 6 + [1]
    bundle(a, b, out=c)
    assert kernels_of(timed) == [1]


def test_wrong_calls_are_one_line(fake: Gpu) -> None:
    """Shapes that disagree, an output over an input, a count, a scalar: as of a single kernel."""
    a, b, c = arrays(20)
    bundle = opened()
    for inputs, how, said in (
        ((a, CupyArray((N, 2 * K), np.float16)), {"out": c}, "axis k is 128"),
        ((CupyArray((K,), np.float16), b), {"out": c}, "a needs 2 dimensions"),
        ((a, b), {"out": CupyArray((20, N), np.float16, at=A)}, "shares memory with a"),
        ((a,), {}, "got 1 arrays, takes 2: a, b"),
        ((a, b), {"out": c, "x": 1.0}, "scalars x; it takes none"),
        ((np.zeros((20, K)), b), {"out": c}, "numpy.ndarray is not on a GPU"),
        ((a, b), {"out": c, "stream": "s"}, "give a handle"),
    ):  # fmt: skip
        with pytest.raises(LaunchError, match=said) as error:
            bundle(*inputs, **how)
        assert "\n" not in str(error.value)
    assert fake.launched() == []


def test_another_gpu_is_refused(fake: Gpu) -> None:
    """Before anything is loaded there; with a fallback too: the bundle is the wrong one."""
    fake.cuda.Device.compute_capability = "80"
    for fallback in (None, lambda *_, **__: None):
        a, b, c = arrays(20)
        with pytest.raises(LaunchError, match="kernels are for sm_90a, and this GPU is sm_80"):
            opened(fallback=fallback)(a, b, out=c)
    assert fake.log == []


def test_a_known_call_looks_its_start_up(fake: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same arrays, or others of their addresses and forms: nothing is read or checked again."""
    bundle = opened()
    a, b, c = arrays(50)
    bundle(a, b, out=c)
    first = fake.launched()
    fake.log.clear()
    for name in ("view", "check_steps", "sizes_of", "device_arch"):
        monkeypatch.setattr(runtime, name, None)
    for _ in range(3):
        a, b, c = arrays(50)
        bundle(a, b, out=c)
    assert [entry[0] for entry in fake.log] == ["launch"] * 3
    assert {(told.ctas, told.threads) for told in fake.launched()} == {
        (told.ctas, told.threads) for told in first
    }
    with pytest.raises(TypeError):  # another shape is new
        bundle(*arrays(51)[:2], out=arrays(51)[2])


def test_arrays_of_an_unknown_library_are_read_at_each_call(fake: Gpu) -> None:
    """They do not say where they are; and what is kept is bounded."""
    bundle = opened()
    for m in (50, 200):
        a, b = Array((m, K), np.float16, at=A), Array((N, K), np.float16, at=B)
        bundle(a, b, out=Array((m, N), np.float16, at=C))
    assert bundle._starts == {}
    assert kernels_of(fake) == [2, 1]


def test_kept_starts_are_bounded(fake: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_MOST_LAUNCHES", 4)
    bundle = opened()
    for m in (*range(95, 106), *range(95, 106)):
        a, b, c = arrays(m)
        bundle(a, b, out=c)
        assert 0 < len(bundle._starts) <= 4
    assert kernels_of(fake) == [2] * 6 + [1] * 5 + [2] * 6 + [1] * 5


class Event:
    """A moment: how many launches there were of each kernel."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def record(self, stream: Any) -> None:
        self.stream = stream.ptr
        self.launches = [THREADS.index(told.threads) for told in self.gpu.launched()]

    def synchronize(self) -> None:
        pass


@pytest.fixture
def timed(fake: Gpu) -> Gpu:
    """A GPU on which a launch takes 3 s of kernel 0, 2 s of kernel 1, 1 s of kernel 2."""

    def elapsed(began: Event, ended: Event) -> float:
        mine = ended.launches[len(began.launches) :]
        assert len(mine) == 5
        assert {told.stream for told in fake.launched()} == {began.stream} == {ended.stream}
        return float(sum(3 - kernel for kernel in mine))

    fake.cuda.Event = lambda: Event(fake)
    fake.cuda.get_elapsed_time = elapsed
    return fake


def test_the_first_call_times_and_keeps(timed: Gpu) -> None:
    """All that can take the arrays, once for sizes: then the fastest alone, on other arrays too."""
    bundle = opened(rule=FIRST_CALL)
    a, b, c = arrays(50)
    bundle(a, b, out=c)
    assert kernels_of(timed) == [2] * 6 + [1] * 6 + [0] * 6 + [2]
    bundle(a, b, out=c)
    other = CupyArray((50, K), np.float16, at=A + 4096)
    bundle(other, b, out=c)
    assert kernels_of(timed) == [2, 2]
    a, b, c = arrays(51)
    bundle(a, b, out=c, stream=77)
    assert kernels_of(timed)[-1] == 2
    assert bundle.which(m=50, n=N, k=K)["rule"] == FIRST_CALL


def test_the_first_call_of_what_few_can_take(timed: Gpu) -> None:
    """Sizes that are known, in rows that the fastest cannot read: another is found for them."""
    bundle = opened(rule=FIRST_CALL)
    a, b, c = arrays(50)
    bundle(a, b, out=c)
    assert kernels_of(timed)[-1] == 2
    odd, _, _ = arrays(50, strides=(2 * K + 2, 2))
    bundle(odd, b, out=c)
    assert kernels_of(timed)[-1] == 0
    fresh = CupyArray((50, K), np.float16, at=A + 4096)
    bundle(fresh, b, out=c)
    assert kernels_of(timed) == [2]


def test_a_bundle_says_what_it_is() -> None:
    assert str(opened()).splitlines() == [
        f"{OPERATION}, 3 kernels for sm_90a, rule measured",
        f"n {N}, k {K}: m up to 16 k01, 100 k02, 512 k01",
        f"n 256, k {K}: m up to 512 k02",
    ]


# The loader.

ALONE = """
import sys
sys.path[:] = [p for p in sys.path if p.startswith((sys.base_prefix, sys.prefix))]
sys.path += [SITE, BUNDLE]

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tinygpu", "cupy", "torch", "ml_dtypes", "z3"):
            raise ImportError(f"{name} is refused")

sys.meta_path.insert(0, Refused())
import loader
"""


def alone(folder: Path, code: str) -> str:
    """Run code in a process that has NumPy and the loader, and no tinyGPU."""
    site = str(Path(np.__file__).parent.parent)
    head = f"SITE, BUNDLE = {site!r}, {str(folder)!r}\n"
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", head + ALONE + code],
        capture_output=True, text=True, timeout=60, cwd=folder.parent,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    return run.stdout


def test_the_loader_alone_reads_and_chooses(folder: Path) -> None:
    """A .zip too; what is wrong is one line of its own LaunchError."""
    shutil.make_archive(str(folder), "zip", folder)
    said = alone(
        folder,
        f"""
bundle = loader.load_bundle(BUNDLE)
print(bundle)
print([bundle.choose(m=m, n={N}, k={K}) for m in (16, 17, 100, 101)])
print(loader.load_bundle(BUNDLE + ".zip", rule="intervals").which(m=7, n={N}, k={K}))

class Array:
    __cuda_array_interface__ = dict(shape=(4, {K}), typestr="<f2", data=(1 << 40, False))

for wrong in (lambda: loader.load_bundle("none"), lambda: bundle(Array(), Array())):
    try:
        wrong()
    except loader.LaunchError as error:
        print(error)
print(sorted(m for m in sys.modules if m.partition(".")[0] in ("tinygpu", "cupy", "torch")))
""",
    )
    lines = said.splitlines()
    assert lines[:3] == str(opened()).splitlines()
    assert lines[3] == "[1, 2, 2, 1]"
    told = {"kernel": "k00", "number": 0, "rule": "intervals", "interval": [1, 7]}
    assert lines[4] == str(told)
    assert lines[5] == "bundle none: there is none"
    assert lines[6].startswith(("GPU: no NVIDIA driver", "CuPy: not installed"))
    assert lines[7:] == ["[]"]


def test_the_loader_prints_its_bundle(folder: Path, tmp_path: Path) -> None:
    """That which it lies in, from anywhere, or the one that is named."""
    other = write_bundle(tmp_path / "other.zip", altered(rule="intervals"))
    for words, rule in (((), "measured"), ((str(other),), "intervals")):
        run = subprocess.run(
            [sys.executable, "-I", str(folder / "loader.py"), *words],
            capture_output=True, text=True, timeout=60, cwd=tmp_path,
        )  # fmt: skip
        assert run.stderr == ""
        assert run.stdout == str(load_bundle(folder, rule=rule)) + "\n"
    assert files_in(folder) == parts()


def test_the_loader_calls_its_kernels(folder: Path) -> None:
    """With a CuPy and a driver that only pretend: the same launches as of the bundle here."""
    code = (
        f"""
import ctypes, types
sys.meta_path.pop(0)
cupy = types.ModuleType("cupy")

class Device:
    compute_capability = "90"
    attributes = {{"MaxSharedMemoryPerBlockOptin": 232448, "MultiProcessorCount": 132}}
    def __init__(self, number=0): pass
    def __enter__(self): pass
    def __exit__(self, *error): pass

class Module:
    def load(self, code): assert code[:4] == b"\\x7fELF"
    def get_function(self, name): return types.SimpleNamespace(ptr=99)

class Driver:
    def cuLaunchKernelEx(self, config, function, held, extra):
        print("launch", config._obj.sizes[3], config._obj.stream)
        return 0
    def cuTensorMapEncodeTiled(self, *told): return 0

error = type("E", (Exception,), {{}})
cupy.cuda = types.SimpleNamespace(
    Device=Device,
    runtime=types.SimpleNamespace(
        getDevice=lambda: 0, setDevice=None, getDeviceCount=lambda: 1, CUDARuntimeError=error
    ),
    driver=types.SimpleNamespace(CUDADriverError=error, funcSetAttribute=lambda *told: None),
    function=types.SimpleNamespace(Module=Module),
    get_current_stream=lambda device: types.SimpleNamespace(ptr=5),
)
sys.modules["cupy"] = cupy
loader._library = lambda: Driver()

class Array:
    def __init__(self, at, *shape):
        self.__cuda_array_interface__ = dict(shape=shape, typestr="<f2", data=(at << 40, False))

bundle = loader.load_bundle(BUNDLE)
for m, n, stream in ((16, {N}, None), (17, {N}, 8), (17, {N + 1}, None)):
    bundle(Array(1, m, {K}), Array(2, n, {K}), out=Array(3, m, n), stream=stream)
"""
    ).replace("\\\\", "\\")
    wanted = [(1, 5), (2, 8), (0, 5)]
    assert alone(folder, code).splitlines() == [f"launch {THREADS[k]} {s}" for k, s in wanted]


def tree_of_loader() -> ast.Module:
    return ast.parse(loader_text())


def top_names(tree: ast.Module) -> list[str]:
    found: list[str] = []
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.append(name)
            case ast.Assign(targets=targets):
                every = [n for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
                found += [n.id for n in every]
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.append(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found += [(n.asname or n.name).partition(".")[0] for n in names]
    return found


def test_the_loader_defines_each_name_once() -> None:
    """Of all modules that it joins, what they import among them; and none that it uses is lost."""
    names = top_names(tree_of_loader())
    assert sorted(names) == sorted(set(names))
    known = {*names, *dir(builtins), "__file__", "__name__", "where"}
    tables = [symtable.symtable(loader_text(), "loader.py", "exec")]
    lost = set()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        own = table.get_type() == "module"
        lost |= {
            s.get_name()
            for s in table.get_symbols()
            if s.is_referenced() and (s.is_global() or own) and s.get_name() not in known
        }
    assert lost == set()


def test_the_loader_imports_little() -> None:
    """Python's own and NumPy; within functions CuPy, PyTorch and ml_dtypes, if they are there."""
    tree = tree_of_loader()
    found: dict[bool, set[str]] = {True: set(), False: set()}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found[node in tree.body] |= {n.name.partition(".")[0] for n in names}
            case ast.ImportFrom(module=str(module), level=0):
                found[node in tree.body].add(module.partition(".")[0])
            case ast.ImportFrom():
                pytest.fail("a relative import")
    assert found[True] - sys.stdlib_module_names == {"numpy"}
    assert found[False] == {"cupy", "torch", "ml_dtypes"}
    assert len(loader_text().splitlines()) < 2050
    assert loader_text().encode() == parts()["loader.py"]


def test_two_modules_with_one_name_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that passes everything checks nothing."""
    monkeypatch.setattr(writing, "_MODULES", (*writing._MODULES, writing._MODULES[1]))
    with pytest.raises(AssertionError, match=r"WIDTHS: tinygpu\.codegen\.runtime\.views"):
        loader_text()


def test_choosing_and_loading_take_little_time(folder: Path) -> None:
    """Under 5 us a choice and 100 ms a bundle, the best of several runs."""
    loads, choices = [], []
    for _ in range(5):
        start = time.perf_counter()
        bundle = load_bundle(folder)
        loads.append(time.perf_counter() - start)
        start = time.perf_counter()
        for m in range(1, 1001):
            bundle.choose(m=m, n=N, k=K)
        choices.append((time.perf_counter() - start) / 1000)
    assert min(loads) < 0.1
    assert min(choices) < 5e-6


def test_a_bundle_says_what_assembled_it() -> None:
    """Of each kernel the version of ptxas, and whether its SASS was checked and is right."""
    for kernel in tree_of(parts())["kernels"]:
        assert kernel["ptxas"] == ptxas_version()
        assert kernel["waits"] == "right" or kernel["waits"].startswith("not checked: ")
