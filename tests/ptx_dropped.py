"""Correct kernels with one synchronisation taken out, at every place.

A place is *silent* if no order of the default ones tells of anything that the whole kernel does not
have.  :data:`REASONS` says of each silent place why nothing is wrong there, or what is not seen.
"""

from __future__ import annotations

import functools
import lzma
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests import ptx_corpus, ptx_corpus_late, ptx_corpus_triton
from tinygpu.codegen.emulator import Module, Report

__all__ = ["KERNELS", "REASONS", "places", "reason", "silent"]

KERNELS = (
    "scan_hillis", "scan_blelloch", "sort_bitonic", "sort_radix", "run_lengths", "arg_max",
    "named_barriers", "histogram_match", "matmul_tiled", "async_copies", "cub_reduce",
    "cub_scan_max", "cub_exchange", "cub_transpose", "cub_warp_scan", "std_barrier", "std_memcpy",
    "std_pipeline", "std_roles", "std_flag", "ptx_bulk", "ptx_reduce", "cluster_histogram",
    "cluster_softmax", "equalize", "sieve", "softmax_sm80", "matmul_fp16_sm80",
    "matmul_fp16_sm90", "boxed_sm90",
)  # fmt: skip
"""Kernels of nvcc by name, and builds of Triton."""
_SYNC = re.compile(
    r"(?<![\w.])(?:@!?%\w+\s+)?(?:bar(?:rier)?\.|fence\.|membar|cp\.async\.(?:bulk\.)?(?:commit|wait)|"
    r"mbarrier\.(?:arrive|try_wait|test_wait)|wgmma\.(?:fence|commit|wait))[^;]*;"
)
_NVCC = ptx_corpus.CASES | ptx_corpus_late.CASES


@functools.cache
def _text(name: str) -> str:
    """Return one kernel's own module."""
    if name in ptx_corpus_triton.BUILDS:
        text: str = ptx_corpus_triton.builds()[name]["ptx"]
        return text
    raw = (ptx_corpus.FOLDER / f"{_NVCC[name].file}.ptx.xz").read_bytes()
    lines = lzma.decompress(raw).decode().split("\n")
    head = [x for x in lines if re.match(r"\.(version|target|address_size|extern \.shared)", x)]
    first = next(n for n, x in enumerate(lines) if re.search(rf"\.entry {name}\(", x))
    rest = "\n".join(lines[first:])
    depth, last = 0, first
    for last in range(first, first + rest.count("\n")):
        depth += lines[last].count("{") - lines[last].count("}")
        if not depth and "}" in lines[last]:
            break
    return "\n".join([*head, *lines[first : last + 1]])


def places(name: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each synchronisation."""
    for number, line in enumerate(_text(name).split("\n"), 1):
        if found := _SYNC.search(line):
            yield number, " ".join(found.group(0).split())


def without(name: str, line: int) -> str:
    """Return the kernel's text without the synchronisation in a line."""
    lines = _text(name).split("\n")
    lines[line - 1] = _SYNC.sub(_left, lines[line - 1])
    return "\n".join(lines)


def _left(found: re.Match[str]) -> str:
    """Return what stays: a wait's predicate says that it is over."""
    waits = re.search(r"(?:try|test)_wait\S*\s+([\w%$]+)\s*,", found.group(0))
    return f"setp.eq.u32 {waits.group(1)}, 0, 0;" if waits else ""


def _run(name: str, text: str, **how: Any) -> Report:
    if name in ptx_corpus_triton.BUILDS:
        return ptx_corpus_triton.run(name, of=Module.parse(text), **how)[0]
    return ptx_corpus.run(_NVCC[name], of=Module.parse(text), **how)[0]


def _kinds(name: str, text: str) -> Iterator[set[tuple[str, int]]]:
    for completion in ("late", "early", "random"):
        report = _run(name, text, completion=completion, limit=2_000_000)
        yield {(f.kind, f.line) for f in report.findings}


@functools.cache
def _whole(name: str) -> frozenset[tuple[str, int]]:
    return frozenset(set().union(*_kinds(name, _text(name))))


def silent(name: str, line: int) -> bool:
    """Whether nothing is told when this synchronisation is left out."""
    return all(kinds <= _whole(name) for kinds in _kinds(name, without(name, line)))


_TWICE = "what it does, the same instruction beside it does too"
REASONS: Mapping[str, Mapping[tuple[int, ...], str]] = {
    "scan_hillis": {(117,): "each thread reads after it only what it has written itself"},
    "scan_blelloch": {(164,): "the first step down is of thread 0 alone, which wrote the 0 too"},
    "sort_radix": {
        (80, 119, 157, 195): "the next turn's barrier stands between this read and the next write"
    },
    "async_copies": {
        (151, 200): "of five rows these are the last: no copy follows that could overwrite them",
        (215,): "its group is empty, and no wait follows",
    },
    "cub_reduce": {(42,): "redux brings the warp together, and no memory is passed on"},
    "cub_transpose": {(72,): "each thread writes where it alone has read"},
    "std_pipeline": {
        (
            323,
        ): "not seen: mbarrier.inval is not held against other threads' last use, which libcu++ "
        "orders by match.any.sync alone"
    },
    "ptx_bulk": {(30, 33): "one of the two fences is enough"},
    "matmul_fp16_sm80": {
        (77,): "the first group becomes part of the second, which the same wait covers",
        (267, 268): "nothing was copied or committed since the wait and the barrier before it",
        (367, 368): _TWICE,
    },
    "matmul_fp16_sm90": {
        (74,): "the first group becomes part of the second, which the same wait covers",
        (268,): "not seen: a product is one operation of its warpgroup, of which each warp's wait "
        "tells all",
    },
    "boxed_sm90": {
        (76, 83, 92, 101, 106, 115): "the others stand there too, and a wait follows",
        (281,): "each thread has waited for the box itself",
        (361, 369, 379): "one of the barriers beside it is enough",
        (394, 400): _TWICE,
        (541,): "nothing follows",
    },
}
"""By kernel, why lines are silent; what begins with *not seen* is a limit of the interpreter."""


def reason(name: str, line: int) -> str:
    """Return why a place is silent, or nothing."""
    return next((why for lines, why in REASONS.get(name, {}).items() if line in lines), "")
