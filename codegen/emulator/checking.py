"""Checking a kernel in several orders: what both command lines do, as values.

Every order has its own copy of the arrays, so that their results can be compared; a finding is told
once, with the orders that made it.

>>> text = '''.visible .entry half(.param .u64 x) { .reg .u64 %a<3>; .reg .u32 %t; .reg .f32 %f;
... ld.param.u64 %a0, [x]; mov.u32 %t, %tid.x; mad.wide.u32 %a1, %t, 4, %a0;
... ld.global.f32 %f, [%a1]; mul.f32 %f, %f, 0f3F000000; st.global.f32 [%a1], %f; ret; }'''
>>> arrays = {"x": np.ones(4, np.float32)}
>>> checked = check(text, "half", 1, 5, arrays, orders=orders("late,random:2"))
>>> checked.status, [str(f)[:15] for f in checked.findings], checked.results["x"][0]
(1, ['line 3: address'], np.float32(0.5))

Source: SARIF 2.1.0 (OASIS) for editors and CI.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .errors import LaunchError, ProgramError, TinyGpuError
from .launching import Extent, Module, launch
from .memory import Memory
from .mending import mend_of
from .report import Array, Finding, gathered
from .sources import Source, annotation, sources
from .values import TYPES

__all__ = ["Checked", "Order", "argument", "check", "check_file", "lines", "orders",
           "sarif", "with_mends", "workflow_commands"]  # fmt: skip

C_TYPES: Mapping[str, str] = {
    **{f"i{bits}": f"s{bits}" for bits in (8, 16, 32, 64)},
    **{f"{sign}int{bits}_t": f"{kind}{bits}" for bits in (8, 16, 32, 64)
       for sign, kind in (("", "s"), ("u", "u"))},
    "bool": "u8", "char": "s8", "short": "s16", "int": "s32", "long": "s64", "unsigned": "u32",
    "half": "f16", "bfloat16": "bf16", "float": "f32", "double": "f64",
}  # fmt: skip
"""What C calls PTX's types, as compilers for Linux have them."""
_TRIALS = 4_000_000
"""Instructions of groups that all trials of mends may have, beside four times the run's."""
_LEAST = 20_000
"""Those that one trial may have at least, and counts for: a wait that is mended lets more run."""
_SMALL = 100
"""Random integers are below it, and not below 0: most are sizes or places."""


@dataclass(frozen=True, slots=True)
class Order:
    """When asynchronous operations complete: ``late``, ``early`` or ``random`` with a seed."""

    completion: str
    seed: int = 0

    def __str__(self) -> str:
        return f"random:{self.seed}" if self.completion == "random" else self.completion


@dataclass(frozen=True, slots=True)
class Checked:
    """What came of it: findings, the first order's results, arrays that other orders changed.

    ``sources`` says where lines come from, if the text does.
    """

    kernel: str
    orders: tuple[Order, ...]
    findings: tuple[Finding, ...]
    results: Mapping[str, Array]
    differing: tuple[str, ...]
    instructions: int
    sources: Mapping[int, Source]
    not_checked: tuple[str, ...] = ()

    @property
    def status(self) -> int:
        """0 if nothing was found, 1 for an error, 3 for warnings alone."""
        if any(f.severity == "error" for f in self.findings):
            return 1
        return 3 if self.findings or self.differing else 0

    @property
    def json(self) -> dict[str, Any]:
        """The outcome as plain data; ``address`` and ``thread`` are -1 where there is none."""
        return {
            "kernel": self.kernel,
            "status": self.status,
            "orders": [str(order) for order in self.orders],
            "instructions": self.instructions,
            "differing": list(self.differing),
            "not_checked": list(self.not_checked),
            "findings": [
                {
                    **asdict(f),
                    "lines": list(f.lines),
                    "source": self._source(f.line),
                    "other_source": self._source(f.other_line),
                }
                for f in self.findings
            ],
        }

    def _source(self, line: int) -> dict[str, Any] | None:
        return asdict(self.sources[line]) if line in self.sources else None


def orders(text: str) -> tuple[Order, ...]:
    """Read ``early,late,random:20``.  Raises LaunchError for what it does not know."""
    found: list[Order] = []
    for part in text.split(","):
        name, _, count = part.strip().partition(":")
        if name in ("early", "late") and not count:
            found.append(Order(name))
        elif name == "random" and re.fullmatch(r"[1-9]\d{0,3}", count or "1"):
            found += [Order("random", seed) for seed in range(int(count or 1))]
        else:
            raise LaunchError(f"order: {part!r}; late, early and random:20 are known")
    return tuple(found)


def argument(text: str) -> Array | float | int:
    """Read a number, the path of a ``.npy`` file, or an array: ``f32[1024]`` of zeros.

    A type is one of PTX or of C (``float``).  With ``:random``, or ``:random:7`` of another seed,
    its numbers are normal, integers from 0 to 99.  Raises LaunchError for anything else.

    >>> argument("int[4]:random").tolist()
    [85, 63, 51, 26]
    """
    if found := re.fullmatch(r"(\w+)\[(\d+)\](:random(?::(\d{1,9}))?)?", text):
        kind, size, fill, seed = found.groups()
        kind = C_TYPES.get(kind, kind)
        if kind not in TYPES or int(size) > 1 << 30:
            raise LaunchError(f"argument: {text!r}; a type of PTX or C with a size, as f32[1024]")
        if fill is None:
            return np.zeros(int(size), TYPES[kind])
        return _random(kind, int(size), int(seed or 0), text)
    if text.endswith(".npy"):
        try:
            return np.ascontiguousarray(np.load(text, allow_pickle=False))
        except (OSError, ValueError) as error:
            raise LaunchError(f"argument: {text!r} cannot be read: {error}") from None
    for number in (lambda t: int(t, 0), float):
        try:
            read: float | int = number(text)
        except ValueError:
            continue
        return read
    raise LaunchError(f"argument: {text!r}; a number, f32[1024] or a .npy file are known")


def _random(kind: str, size: int, seed: int, text: str) -> Array:
    dtype, rng = TYPES[kind], np.random.default_rng(seed)
    if dtype.kind in "ui" and not kind.startswith(("b", "e")) and "x" not in kind:
        return rng.integers(0, _SMALL, size).astype(dtype)
    if dtype.kind in "ui" or dtype.itemsize > 8 or kind == "pred":
        raise LaunchError(f"argument: {text!r}; only integers and floating point are random")
    return rng.standard_normal(size).astype(dtype)


def check(
    text: str,
    kernel: str,
    grid: Extent,
    block: Extent,
    arguments: Mapping[str, object],
    *,
    cluster: Extent = 1,
    smem_bytes: int = 0,
    orders: Sequence[Order] = (Order("late"), Order("early"), Order("random")),
    lanes: bool | None = None,
    limit: int = 5_000_000,
    races: bool = True,
) -> Checked:
    """Run a kernel in every order; arrays among the arguments are copied before each.

    Arguments are taken by name if all names are the kernel's parameters, else in order.
    Raises ProgramError and LaunchError as ``launch`` does.
    """
    module = Module.parse(text)
    kernel = kernel or next(iter(module.parsed.kernels))
    entry = module.parsed.kernels.get(kernel)
    names = [p.name for p in entry.parameters] if entry else []
    given = list(arguments.values())
    if arguments and set(arguments) == set(names):
        given = [arguments[name] for name in names]
    labels = names if set(arguments) == set(names) else list(arguments)
    first: dict[str, Array] = {}
    differing: dict[str, None] = {}
    found: dict[Finding, Finding] = {}
    instructions = 0
    for n, order in enumerate(orders):
        memory, held = Memory(), dict[str, Array]()
        passed: list[object] = []
        for name, value in zip(labels, given, strict=True):
            if isinstance(value, np.ndarray):
                held[name] = value.copy()
                passed.append(memory.allocate(held[name], name))
            else:
                passed.append(value)
        report = launch(
            module, kernel, grid, block, passed, memory, cluster=cluster, seed=order.seed,
            completion=order.completion, smem_bytes=smem_bytes, limit=limit, lanes=lanes,
            races=races,
        )  # fmt: skip
        instructions = instructions or sum(report.instruction_counts.values())
        for finding in report.findings:
            same = found.get(finding)
            total = finding.count + (same.count if same else 0)
            found[finding] = replace(same or finding, count=total)
        for name, array in held.items():
            if n and not np.array_equal(array.view(np.uint8), first[name].view(np.uint8)):
                differing[name] = None
        first = first or held
    return Checked(
        kernel, tuple(orders), gathered(found.values()), first, tuple(differing), instructions,
        sources(text), report.not_checked,
    )  # fmt: skip


def with_mends(checked: Checked, text: str, run: Callable[[str, int], Checked]) -> Checked:
    """Try what mends each error; ``run`` checks a text with a limit of instructions."""
    left = _TRIALS + 4 * checked.instructions
    limit = max(_LEAST, 4 * checked.instructions)

    def found(edited: str) -> tuple[Finding, ...] | None:
        nonlocal left
        if left < limit:
            return None
        left -= _LEAST  # also of a text that is refused: it has been read
        try:
            tried = run(edited, limit)
        except TinyGpuError:  # an instruction that the target has not, say
            return None
        left -= tried.instructions * len(tried.orders)
        return tried.findings

    told = []
    for finding in checked.findings:
        mend = None
        if finding.severity == "error":
            mend = mend_of(finding, checked.findings, text, found)
        told.append(replace(finding, mend=str(mend)) if mend else finding)
    return replace(checked, findings=tuple(told))


def check_file(
    file: Path, *, kernel: str, grid: str, block: str, cluster: str, smem: int, arg: Sequence[str],
    save: Sequence[str], order: str, lanes: bool | None, limit: int, races: bool,
) -> Checked:  # fmt: skip
    """Check a kernel of a file, with the options of a command line; save the arrays it names.

    Raises OSError for a file, ProgramError and LaunchError as ``check`` does.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ProgramError(f"{file}: no text; give PTX, not a cubin") from None
    given = dict(_pair(pair, "--arg") for pair in arg)
    arguments = {name: argument(value) for name, value in given.items()}

    def run(text: str, limit: int) -> Checked:
        return check(
            text, kernel, _extent(grid, "--grid"), _extent(block, "--block"), arguments,
            cluster=_extent(cluster, "--cluster"), smem_bytes=smem, orders=orders(order),
            lanes=lanes, limit=limit, races=races,
        )  # fmt: skip

    checked = with_mends(run(text, limit), text, run)
    for name, path in (_pair(pair, "--save") for pair in save):
        if name not in checked.results:
            raise LaunchError(f"--save: {name} is no array; {', '.join(checked.results) or 'none'}")
        np.save(path, checked.results[name])
    return checked


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise LaunchError(f"{option}: {text!r}; give NAME=VALUE")
    return name, value


def _extent(text: str, option: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d{1,9}(,\d{1,9}){0,2}", text):
        raise LaunchError(f"{option}: {text!r}; one to three numbers, as 4,2,1")
    return tuple(map(int, text.split(",")))


def lines(checked: Checked, file: Path) -> list[str]:
    """Return the outcome as lines of text: findings, what the order changes, what was run."""

    def where(f: Finding) -> str:
        named = [
            checked.sources[line] for line in (f.line, f.other_line) if line in checked.sources
        ]
        return f" (from {' and '.join(map(str, named))})" if named else ""

    return [
        *(f"{file}: {finding}{where(finding)}" for finding in checked.findings),
        *(f"{file}: warning: {name} is not the same in every order" for name in checked.differing),
        *_summary(checked),
    ]


def workflow_commands(checked: Checked, file: Path) -> list[str]:
    """Return the outcome as GitHub's workflow commands, at lines of the source if these are known.

    What was run, and what was not checked, are ordinary lines.
    """
    found = [
        annotation(
            f.severity, f.kind, f"{_told(f)} ({f.text}, line {f.line} of {file})",
            checked.sources.get(f.line, Source(str(file), max(1, f.line), 0)),
        )
        for f in checked.findings
    ]  # fmt: skip
    return [
        *found,
        *(annotation("warning", "order", f"{name} is not the same in every order",
                     Source(str(file), 1, 0)) for name in checked.differing),
        *_summary(checked),
    ]  # fmt: skip


def _told(f: Finding) -> str:
    return f"{f.message}; {f.mend}" if f.mend else f.message


def _summary(checked: Checked) -> list[str]:
    count = f"{len(checked.findings)} findings" if checked.findings else "nothing found"
    return [
        f"{checked.kernel}: {count}; orders {', '.join(map(str, checked.orders))}",
        *(f"not checked: {what}" for what in checked.not_checked),
    ]


def sarif(checked: Checked, path: str) -> dict[str, Any]:
    """Return the findings as SARIF, each at its line of the source or of the file at ``path``.

    Of a finding at a line of the source, the lines of the file are related places.
    """

    def place(line: int) -> dict[str, Any]:
        return physical(path, {"startLine": max(1, line)})

    def source(line: int) -> list[dict[str, Any]]:
        if line not in checked.sources:
            return []
        at = checked.sources[line]
        column = {"startColumn": at.column} if at.column else {}
        return [physical(at.file, {"startLine": at.line, **column})]

    def physical(uri: str, region: dict[str, int]) -> dict[str, Any]:
        return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}

    results = []
    for f in checked.findings:
        result: dict[str, Any] = {
            "ruleId": f.kind,
            "level": f.severity,
            "message": {"text": f"{_told(f)} ({f.text})"},
            "locations": source(f.line) or [place(f.line)],
            "occurrenceCount": f.count,
        }
        own = [place(f.line)] if f.line in checked.sources else []
        others = [place(line) for line in (f.other_line, *f.lines) if line]
        if related := [*own, *source(f.other_line), *others]:
            result["relatedLocations"] = related
        results.append(result)
    rules = [{"id": kind} for kind in sorted({f.kind for f in checked.findings})]
    told = [
        {"level": "note", "message": {"text": f"not checked: {what}"}}
        for what in checked.not_checked
    ]
    driver = {"name": "tinygpu ptx", "rules": rules}
    return {
        "version": "2.1.0",
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "runs": [
            {
                "tool": {"driver": driver},
                "results": results,
                "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": told}],
                "properties": {"not_checked": list(checked.not_checked)},
            }
        ],
    }
