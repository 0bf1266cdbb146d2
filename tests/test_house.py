"""The house: who may import whom, imports that go round, names that stand for one thing, its size.

An import inside of a function counts, and one for types alone.  What is listed here may only
become less.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib.util import resolve_name
from pathlib import Path
from typing import get_args

import networkx as nx
import pytest

from tinygpu.codegen.emit import RULES
from tinygpu.isa.algebra import OPERATORS
from tinygpu.isa.instructions import ARRIVALS, FAMILIES, FENCES, GROUPS, INSTRUCTIONS
from tinygpu.machines import MACHINES, ampere, blackwell, hopper, simt
from tinygpu.term.machine import Chosen, used_instructions
from tinygpu.term.operation import matmul, softmax
from tinygpu.term.program import Affine, Arrive, Barrier, Fence, Program, Statement, Sync, Wait

ROOT = Path(__file__).parent.parent
FOLDERS = {"tinygpu": "tinygpu", "search": "tinygpu.search", "codegen": "tinygpu.codegen"}
"""The top folders, as they are imported."""

ROOMS = {
    "tinygpu.codegen": ("kernel", "rules", "emulator", "runtime", "run"),
    "tinygpu.search": ("time", "exact", "explain", "strategies", "tuning"),
    "tinygpu": (
        *("devices", "isa", "term", "checker", "legality", "meaning", "space", "machines", "cli"),
    ),
}
"""The rooms of each top folder; what lies beside them is a room that has the folder's name."""

EDGES = {
    "devices": set[str](),
    "isa": {"devices"},
    "term": {"isa"},
    "checker": {"term"},
    "legality": {"devices", "isa", "term"},
    "meaning": {"isa", "term", "legality"},
    "space": {"devices", "term", "legality"},
    "machines": {"isa", "term"},
    "time": {"devices", "isa", "term", "space"},
    "exact": {"term", "legality", "space", "time"},
    "search": {"term", "space", "time", "exact"},
    "explain": {"devices", "isa", "term", "legality", "space", "time", "exact"},
    "strategies": {"isa", "term", "time", "space", "exact", "search"},
    "kernel": {"term", "runtime"},
    "rules": {"devices", "isa", "term", "kernel"},
    "codegen": {"devices", "term", "legality", "kernel", "rules"},
    "runtime": set[str](),
    "emulator": set[str](),
    "run": {
        "devices",
        "isa",
        "term",
        "legality",
        "meaning",
        "space",
        "kernel",
        "rules",
        "codegen",
        "runtime",
        "emulator",
    },
    "tuning": {
        *("devices", "term", "meaning", "space", "machines", "time", "exact", "search"),
        *("strategies", "runtime", "run"),
    },
    "cli": {
        "devices",
        "checker",
        "isa",
        "term",
        "legality",
        "meaning",
        "space",
        "machines",
        "time",
        "exact",
        "search",
        "explain",
        "strategies",
        "tuning",
        "codegen",
        "runtime",
        "emulator",
        "run",
    },
}
"""Which rooms each room imports, apart from ``tinygpu`` itself: errors, the reader of files."""

MOST_FILES = 6
"""In how many files outside of the machines an instruction's name stands."""

WORDS = {"fma", "alu", "mufu", "cvt", "mov", "mbarrier"}
"""Instructions whose names are words of units, operators and completions, too."""

WALK_LINES = {
    "meaning": 6044,
    "legality": 8105,
    "time": 5156,
    "tinygpu.codegen.emit kernel rules": 4521,
}
"""The most lines of a walk."""

LINES = 73925
"""The most lines of the three folders together; without the emulator they are to be 40,000."""


ANYS = 137
"""The most times that the model says Any, where a type says what a value is; the mark is 150."""


@cache
def modules() -> dict[str, Path]:
    """Return the file of each module."""
    found = {}
    for folder, name in FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):  # which follows no link to a folder
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join((name, *(p for p in parts if p != "__init__")))] = path
    return found


def imported(name: str) -> Iterator[str]:
    """Yield the modules of the project that a module imports, wherever it does."""
    for node in ast.walk(ast.parse(modules()[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            package = name if modules()[name].stem == "__init__" else name.rpartition(".")[0]
            module = resolve_name("." * node.level + (node.module or ""), package)
            for one in node.names:
                inner = f"{module}.{one.name}"
                yield inner if inner in modules() else module
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names)


@cache
def graph() -> nx.DiGraph:
    """Return the graph of imports."""
    found = nx.DiGraph()
    for name in modules():
        found.add_edges_from((name, to) for to in imported(name) if to in modules() and to != name)
    return found


def room(name: str) -> str:
    """Return the room of a module.

    >>> room("tinygpu.search.time.cost"), room("tinygpu.search.store"), room("tinygpu.space.space")
    ('time', 'search', 'space')
    """
    for folder, rooms in ROOMS.items():
        if name == folder or name.startswith(f"{folder}."):
            first = name.removeprefix(folder).removeprefix(".").partition(".")[0]
            return first if first in rooms else folder.rpartition(".")[2]
    raise AssertionError(name)


def test_no_imports_go_round() -> None:
    rounds = [sorted(c) for c in nx.strongly_connected_components(graph()) if len(c) > 1]
    assert rounds == []


def test_rooms_import_those_that_they_may() -> None:
    """``import tinygpu`` gives names of all, ``python -m tinygpu`` is the command line."""
    found = {name: set[str]() for name in EDGES}
    for here, there in graph().edges:
        if here not in ("tinygpu", "tinygpu.__main__") and room(here) != room(there):
            found[room(here)].add(room(there))
    assert {name: to - {"tinygpu"} for name, to in found.items()} == EDGES


def test_rooms_stand_in_one_order() -> None:
    assert nx.is_directed_acyclic_graph(nx.DiGraph((a, b) for a, to in EDGES.items() for b in to))


@pytest.mark.parametrize("path", sorted({path.parent for path in modules().values()}), ids=str)
def test_a_folder_says_what_lives_there(path: Path) -> None:
    """In the docstring of its ``__init__``."""
    assert ast.get_docstring(ast.parse((path / "__init__.py").read_text(encoding="utf-8")))


def test_class_names_are_unique_but_for_a_few() -> None:
    """Private classes apart."""
    count = Counter(
        node.name
        for path in modules().values()
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, times in count.items() if times > 1} == SHARED


def test_walks_read_an_instruction_and_not_its_name() -> None:
    """Only its own room, the machines, its rule and the emulator say what is called how."""
    found = set()
    for name, path in modules().items():
        if room(name) in ("isa", "machines", "rules", "emulator"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                parts = [node.left, *node.comparators]
                said = {c.value for part in parts for c in ast.walk(part)
                        if isinstance(c, ast.Constant)}  # fmt: skip
                if said & set(INSTRUCTIONS) and any(
                    isinstance(part, ast.Attribute) and part.attr == "name" for part in parts
                ):
                    found.add((name, ast.unparse(node)))
    assert found == NAMED


def test_walks_ask_a_group_or_a_fence_and_not_its_name() -> None:
    """Only their own room, terms that are built, rules and what runs code say what is called how.

    Docstrings apart.
    """
    names = {*GROUPS, *ARRIVALS, *FENCES}
    found = set()
    for name in modules():
        free = room(name) in ("isa", "machines", "rules", "emulator", "run")
        if not free and not name.startswith(BUILDER) and names & literals(name):
            found.add(name)
    assert found == set(SPELLED), found ^ set(SPELLED)


@cache
def literals(name: str) -> frozenset[object]:
    """Return the constants in a module's code, docstrings apart."""
    tree = ast.parse(modules()[name].read_text(encoding="utf-8"))
    said = {n.value for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    constants = (n for n in ast.walk(tree) if isinstance(n, ast.Constant) and n not in said)
    return frozenset(n.value for n in constants)


@pytest.mark.parametrize("name", sorted({*INSTRUCTIONS} - WORDS))
def test_an_instruction_stands_in_few_files(name: str) -> None:
    """In its own, those of machines that list it, its rule's, the builder's, and its laws'."""
    touched = {m for m in modules() if room(m) not in ("emulator", "machines")
               and name in literals(m)}  # fmt: skip
    assert len(touched) <= MOST_FILES, touched


@pytest.mark.parametrize("walk", WALK_LINES)
def test_a_walk_is_read_in_an_afternoon(walk: str) -> None:
    lines = sum(
        len(path.read_text(encoding="utf-8").splitlines())
        for name, path in modules().items()
        if room(name) in walk.split() or name == walk.split()[0]
    )
    assert lines <= WALK_LINES[walk], f"{lines}; delete, or raise WALK_LINES by what is new"


def test_the_model_says_what_its_values_are() -> None:
    """Any stands where a library has no types, or a value is of any type, and nowhere else."""
    model = [path for name, path in modules().items()
             if not name.startswith("tinygpu.codegen") and room(name) != "cli"]  # fmt: skip
    anys = sum(len(re.findall(r"\bAny\b", path.read_text(encoding="utf-8"))) for path in model)
    assert anys <= ANYS, f"Any stands {anys} times; name the type, see tinygpu/numbers.py"


def test_an_instruction_and_its_rule_stand_in_files_of_one_name() -> None:
    """What lies beside the families is listed."""
    family = {i.name: _last(f.__name__) for f in FAMILIES for i in f.FAMILY}
    for room_of, folder in (("isa", "tinygpu/isa"), ("rules", "codegen/rules")):
        files = {path.stem for path in (ROOT / folder).glob("*.py")} - {"__init__"}
        assert files == {*family.values()} | BESIDE[room_of]
    assert {name: _last(rule.__module__) for name, rule in RULES.items()} == {
        name: family[name] for name in RULES
    }


def _last(module: str) -> str:
    return module.rpartition(".")[2]


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_an_instruction_has_a_rule_work_and_a_meaning(name: str) -> None:
    """Of one without a rule another statement stands for it, or the allocation of a buffer.

    That each law has an example that breaks it is asked where the examples are, in ``test_laws``,
    ``test_ampere``, ``test_hopper_laws`` and ``test_blackwell_laws``.
    """
    ring = Barrier("full", 1, 1)
    others: tuple[Statement, ...] = (
        Sync(), Sync(scope="cluster"), Wait(ring, Affine()), Arrive(ring, Affine()),
        *(Arrive(ring, Affine(), after=group) for group in ARRIVALS),
        *(Fence(kind) for kind in FENCES),
    )  # fmt: skip
    stood_for = {"tcgen05.alloc", *(s.needs for s in others)}
    how = INSTRUCTIONS[name]
    if name not in RULES:
        assert name in stood_for
        return
    assert how.unit in _units("tile" if how.issuer in ("warpgroup", "one") else "threads")
    assert set(how.variants) <= set(OPERATORS)
    assert how.meaning or how.variants or how.reads or how.semantics("", 1.0) == 1.0


def _units(function: str) -> set[str]:
    """Return the units for which a function of the time model has a case of their own."""
    path = modules()["tinygpu.search.time.work"]
    return {
        str(constant.value)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name == function
        for case in ast.walk(node)
        if isinstance(case, ast.match_case) and not isinstance(case.body[0], ast.Raise)
        for constant in ast.walk(case.pattern)
        if isinstance(constant, ast.Constant)
    }


def test_shipped_terms_use_every_instruction() -> None:
    """The record has their verdicts, times and PTX, so that each goes through all walks."""
    points = {"simt": simt.LADDER, "ampere": ampere.STARTS, "hopper": hopper.STARTS,
              "blackwell": blackwell.STARTS}  # fmt: skip
    terms: list[Program] = [
        MACHINES[name].program(
            matmul() if name == "simt" else matmul("bf16", layout="nt"), Chosen(values)
        )
        for name, starts in points.items()
        for values in starts.values()
    ]
    row = {"vector": 4, "chunks": 4, "warps": 8, "rows": 1, "teams": 1, "ctas": 0}
    terms.append(MACHINES["rows"].program(softmax(), Chosen(row)))
    used = {name for term in terms for name, _ in used_instructions(term)}
    assert set(INSTRUCTIONS) - used == UNUSED


def test_few_functions_tell_statements_apart() -> None:
    """Three kinds or more; most go by a fold over statements in the end."""
    kinds = {one.__name__ for one in get_args(Statement)}
    found = []
    for name, path in modules().items():
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                told = {
                    one.id
                    for node in ast.walk(function)
                    for part in _asked(node)
                    for one in ast.walk(part)
                    if isinstance(one, ast.Name)
                }
                if len(told & kinds) >= 3:
                    found.append(f"{name}.{function.name}")
    assert len(found) <= FORKS, found


def _asked(node: ast.AST) -> list[ast.expr]:
    """Return the classes that a pattern, or a call of isinstance, tells apart."""
    if isinstance(node, ast.MatchClass):
        return [node.cls]
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
        return node.args[1:]
    return []


def test_a_part_of_the_builder_has_its_own_state() -> None:
    """A class has less than 500 lines; what one sets, other modules read where it is listed."""
    trees = {name: ast.parse(path.read_text(encoding="utf-8"))
             for name, path in modules().items() if name.startswith(BUILDER)}  # fmt: skip
    own: dict[str, str] = {}
    read: set[str] = set()
    for name, tree in trees.items():
        for kind in (node for node in tree.body if isinstance(node, ast.ClassDef)):
            assert (kind.end_lineno or 0) - kind.lineno < 500, kind.name
            starts = [
                f for f in kind.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"
            ]
            own |= {a.attr: name for start in starts for a in _attributes(start, ast.Store)}
    for name, tree in trees.items():
        read |= {a.attr for a in _attributes(tree, ast.Load) if own.get(a.attr, name) != name}
        assert all(own.get(a.attr, name) == name for a in _attributes(tree, ast.Store))
    assert {attribute for attribute in read if attribute.startswith("_")} == READ


def _attributes(tree: ast.AST, how: type[ast.expr_context]) -> list[ast.Attribute]:
    return [a for a in ast.walk(tree) if isinstance(a, ast.Attribute) and isinstance(a.ctx, how)]


def test_it_does_not_grow() -> None:
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in modules().values())
    mend = "delete, or raise LINES by what the entry takes"
    assert lines <= LINES, f"there are {lines} lines, LINES says {LINES}: {mend}"


NAMED = {
    ("tinygpu.legality.role_laws", "do.instruction.name == 'st.shared'"),
}  # fmt: skip
"""Where a name is compared still: of all stores one alone writes into another CTA."""

SPELLED = {
    "tinygpu.checker.table": "what is believed of PTX, written apart from isa",
    "tinygpu.codegen.emit": "the names of instructions that have a rule",
    "tinygpu.legality.tensor_laws": "the name of the instruction that a law is of",
}
"""Modules that have a word that is a group's name too, and what it is there."""

BESIDE = {
    "isa": {"algebra", "fragment", "instruction", "instructions", "memory", "ordering"},
    "rules": {"descriptors"},
}
"""What the families have in common: what an instruction is; what several rules call."""

UNUSED = {"tcgen05.st"}
"""No term that ships has it: ``test_blackwell_ptx`` has one whose code is assembled."""

BUILDER = "tinygpu.term.builder"
READ = {"_digits", "_role", "_copies", "_only", "_on_chip", "_pitches", "_bounds", "_barriers"}
"""State of one class of the builder that another one reads, and never sets."""

FORKS = 15
"""The most functions that tell three or more kinds of statements apart."""

SHARED = {
    "Agent", "Finding", "Function", "Group", "Instruction", "Kernel", "Mbarrier", "Run",
    "Shared", "TensorMap",
}  # fmt: skip
"""Names that still stand for several things: mostly of the two interpreters, the judge and time."""
