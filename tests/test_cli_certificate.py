"""``check --certificate`` and ``verify``: a term, its certificate, three outcomes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.hopper_terms import dos
from tests.hopper_terms import term as hopper
from tests.test_cli import complaint, tinygpu
from tinygpu.checker.make import certified
from tinygpu.checker.written import written
from tinygpu.codegen.emulator import Module
from tinygpu.codegen.runtime.bundle import digest
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.term.machine import Machine
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.program import Access
from tinygpu.term.schedule import Schedule, to_json
from tinygpu.term.text import key_of, text_of

SIZES = {"m": 512, "n": 512, "k": 512}


def schedule(path: Path, machine: Machine, point: str) -> Path:
    values = LADDER[point] if isinstance(machine, Simt) else STARTS[point]
    operation = matmul() if isinstance(machine, Simt) else matmul("bf16", layout="nt")
    problem = Problem.of(operation, **SIZES)
    path.write_text(to_json(Schedule.of(machine, values), problem))
    return path


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, Path]:
    """A term and its certificate."""
    given = schedule(tmp_path / "s.json", Hopper(), "ring")
    term, certificate = tmp_path / "k.term", tmp_path / "k.certificate"
    assert tinygpu("emit", given, "-o", tmp_path / "k.ptx", "--term", term).exit_code == 0
    result = tinygpu("check", given, "--certificate", certificate)
    assert result.exit_code == 0
    assert "a certificate of" in result.stderr
    return term, certificate


def test_a_certificate_is_verified(made: tuple[Path, Path]) -> None:
    result = tinygpu("verify", *made)
    assert result.exit_code == 0
    order, meaning = result.stdout.splitlines()
    assert order.startswith("order accepted: ")
    assert meaning == "meaning accepted: c: each element once, of acc over k, each term once"


def test_what_stores_elsewhere_is_refused(tmp_path: Path) -> None:
    """Its order is right, and what it computes is not."""
    term, certificate = tmp_path / "k.term", tmp_path / "k.certificate"
    wrong = dos(hopper("plain"), "st.global", lambda do: replace(do, write=aside(do.write)))
    found, _ = certified(wrong)
    assert found is not None
    term.write_text(text_of(wrong))
    certificate.write_text(written(wrong, found))
    result = tinygpu("verify", term, certificate)
    assert result.exit_code == 1
    order, meaning = result.stdout.splitlines()
    assert order.startswith("order accepted: ")
    assert meaning.startswith("meaning refused: store: ")


def aside(write: Access) -> Access:
    row, column = write.origin
    return replace(write, origin=(row, column + 8))


def test_a_term_that_was_changed_is_refused(made: tuple[Path, Path]) -> None:
    term, certificate = made
    text = term.read_text().replace("stages=4", "stages=3")
    assert text != term.read_text()
    term.write_text(text)
    result = tinygpu("verify", term, certificate)
    assert result.exit_code == 1
    assert result.stdout == "order refused: certificate: it is of another term\n"


def test_a_claim_that_was_changed_is_refused_with_its_line(made: tuple[Path, Path]) -> None:
    term, certificate = made
    text = certificate.read_text()
    certificate.write_text(text.replace('"touched":[true', '"touched":[false', 1))
    result = tinygpu("verify", term, certificate)
    assert result.exit_code == 1
    assert "at the start" in result.stdout


def test_what_is_no_term_is_a_mistake(made: tuple[Path, Path], tmp_path: Path) -> None:
    term, certificate = made
    assert "begins with" in complaint(tinygpu("verify", certificate, certificate))
    (tmp_path / "raw").write_bytes(b"\xff\xfe")
    assert "no UTF-8" in complaint(tinygpu("verify", term, tmp_path / "raw"))
    assert "No such file" in complaint(tinygpu("verify", term, tmp_path / "none"))


def test_a_term_of_another_class_is_not_certified(made: tuple[Path, Path], tmp_path: Path) -> None:
    term, certificate = made
    text = term.read_text()
    other = tmp_path / "other.term"
    other.write_text(text.replace("Barrier(name='full'", "Barrier(name='full'", 1))
    assert tinygpu("verify", other, certificate).exit_code == 0
    changed = text.replace(
        "For(var='kt', trips='trips', ", "For(var='kt', trips='trips', "
    ).replace("trips='trips', body", "trips='k', body", 1)
    if changed == text:
        changed = text.replace("trips='trips'", "trips='k'", 1)
    other.write_text(changed)
    bound = certificate.read_text().replace(key_of(text), key_of(changed))
    certificate.write_text(bound)
    result = tinygpu("verify", other, certificate)
    assert result.exit_code == 3
    assert result.stdout.startswith("order not certified: ")


def test_ptx_names_its_term_and_its_certificate(made: tuple[Path, Path], tmp_path: Path) -> None:
    """In a comment before the code, which is what it was."""
    term, certificate = made
    named = tmp_path / "named.ptx"
    result = tinygpu("emit", tmp_path / "s.json", "-o", named, "--certificate", certificate)
    assert result.exit_code == 0
    comment, code = named.read_text().split("\n", 1)
    assert code == (tmp_path / "k.ptx").read_text()
    hashes = (key_of(term.read_text()), digest(certificate.read_bytes()))
    assert comment == "// hopper_matmul: term SHA-256 {}, certificate SHA-256 {}".format(*hashes)
    assert Module.parse(named.read_text()).parsed.kernels.keys() == {"hopper_matmul"}


def test_ptx_names_no_certificate_of_another_term(made: tuple[Path, Path], tmp_path: Path) -> None:
    other = schedule(tmp_path / "other.json", Hopper(), "plain")
    file = tmp_path / "other.ptx"
    result = tinygpu("emit", other, "-o", file, "--certificate", made[1])
    assert "it is of another term" in complaint(result)
    assert not file.exists()
