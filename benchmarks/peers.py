"""The peers that measurements stand beside, and the file that results go to.

A peer is called with the problem, CuPy inputs (bf16 as its bits), the CuPy output and the scalars.
It returns a function that enqueues one run on the current stream.  All of them write the output.

Results are a file {"provenance": {..}, "rows": [..]}, replaced whole by every ``write_results``, so
that a run that was stopped goes on: ``load_rows`` says which rows are there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tinygpu.errors import OperationError, StoreError
from tinygpu.operation import Problem

__all__ = [
    "FOLDER",
    "ROW",
    "load_rows",
    "torch_compiled",
    "torch_matmul",
    "torch_rms_norm",
    "write_results",
]

FOLDER = Path(__file__).parent / "results"
ROW = (
    *("group", "case", "m", "n", "k", "dtype", "schedule"),
    *("predicted_seconds", "seconds", "peer", "peer_seconds", "error"),
)
"""The fields of a row."""

Run = Callable[[], None]


def torch_matmul(
    problem: Problem, inputs: Sequence[Any], output: Any, scalars: Mapping[str, float]
) -> Run:
    """PyTorch's matmul (cuBLAS), fp32 without TF32, 16-bit types with fp32 sums."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    a, b, c = (_tensor(x, o.dtype) for x, o in _arrays(problem, inputs, output))
    if c.dtype != a.dtype:
        return lambda: torch.mm(a, b, out_dtype=c.dtype, out=c)
    return lambda: torch.mm(a, b, out=c)


def torch_rms_norm(
    problem: Problem, inputs: Sequence[Any], output: Any, scalars: Mapping[str, float]
) -> Run:
    """PyTorch's fused ``rms_norm`` of (x, w) with ``eps``; a copy more where it takes no output."""
    import torch

    x, w, y = (_tensor(x, o.dtype) for x, o in _arrays(problem, inputs, output))
    eps = scalars["eps"]
    fused = torch.ops.aten._fused_rms_norm
    if not hasattr(fused, "out"):
        return lambda: y.copy_(torch.nn.functional.rms_norm(x, w.shape, w, eps))
    deviation = torch.empty((x.shape[0], 1), dtype=torch.float32, device=x.device)
    return lambda: fused.out(x, w.shape, w, eps, out0=y, out1=deviation)


def torch_compiled(
    problem: Problem, inputs: Sequence[Any], output: Any, scalars: Mapping[str, float]
) -> Run:
    """What ``torch.compile`` makes of an elementwise expression, in the operands' own types."""
    import torch

    operation = problem.operation
    if operation.reduced:
        raise OperationError(f"{operation.name}: this peer is elementwise; choose another")
    tensors = [_tensor(x, o.dtype) for x, o in _arrays(problem, inputs, output)]
    names = [o.name for o in operation.inputs]

    def compute(*given: Any) -> None:
        values = {**scalars, **{n: x.float() for n, x in zip(names, given, strict=False)}}
        given[-1].copy_(operation.combine.evaluate(values))

    compiled = torch.compile(compute, dynamic=False)
    return lambda: compiled(*tensors)


def write_results(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    provenance: Mapping[str, Any],
    folder: Path = FOLDER,
) -> Path:
    """Add rows to the results ``name``, a row of an equal case replacing the old one.

    The file is replaced as a whole, so it is never half written.  Raises StoreError for a row with
    a field too many or too few, and where the file cannot be written.
    """
    for row in rows:
        if set(row) != set(ROW):
            odd = ", ".join(sorted(set(row) ^ set(ROW)))
            raise StoreError(
                f"results {name}: row with fields {odd} amiss; it has {', '.join(ROW)}"
            )
    path = folder / f"{name}.json"
    merged = {_case(row): dict(row) for row in (*load_rows(name, folder), *rows)}
    text = json.dumps({"provenance": dict(provenance), "rows": list(merged.values())}, indent=1)
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part.write_text(text + "\n", encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StoreError(f"results {path}: {error.strerror}; give another folder") from None
    return path


def load_rows(name: str, folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Return the rows of the results ``name``; none if there is no such file.

    Raises StoreError for a file that is no results.
    """
    path = folder / f"{name}.json"
    if not path.exists():
        return []
    try:
        rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
        return [dict(row) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"results {path}: not readable ({error}); move it away") from None


def _case(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(json.dumps(row[name]) for name in ROW[:7]) + (row["peer"],)


def _arrays(problem: Problem, inputs: Sequence[Any], output: Any) -> list[tuple[Any, Any]]:
    return list(zip((*inputs, output), problem.operation.operands, strict=True))


def _tensor(array: Any, dtype: str) -> Any:
    """Return a CuPy array as a tensor that shares its memory."""
    import torch

    if dtype != "bf16":
        return torch.from_dlpack(array)
    return torch.from_dlpack(array.view("int16")).view(torch.bfloat16)
