"""The peers that measurements stand beside, and the file that results go to.

A peer is called with the problem, CuPy inputs (bf16 as its bits), the CuPy output and the scalars.
It returns a function that enqueues one run on the current stream and writes that output, or returns
one of its own, a tensor.

Results are a file {"provenance": {..}, "runs": [..], "rows": [..]}, replaced whole by every
``write_results``, so that a run that was stopped goes on: ``load_rows`` says which rows are there.
``runs`` are the provenances of all rows, a row's ``run`` the index of its own; ``provenance`` is
that of the last run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tinygpu.errors import OperationError, StoreError
from tinygpu.term.expression import OPERATORS, Apply, Constant, Expression, Value
from tinygpu.term.operation import Problem, matmul

__all__ = [
    "FOLDER",
    "ROW",
    "load_rows",
    "load_runs",
    "peers",
    "tensors",
    "torch_add",
    "torch_compiled",
    "torch_compiled_rms_norm",
    "torch_eager",
    "torch_matmul",
    "torch_rms_norm",
    "write_results",
    "write_tree",
]

FOLDER = Path(__file__).parent / "results" / "h200"
ROW = (
    *("group", "case", "m", "n", "k", "dtype", "schedule"),
    *("predicted_seconds", "seconds", "peer", "peer_seconds", "error"),
)
"""The fields of a row."""
_TORCH = {
    "max": "maximum",
    "min": "minimum",
    "ex2": "exp2",
    "lg2": "log2",
    "rcp": "reciprocal",
}

Run = Callable[[], Any]


def torch_matmul(
    problem: Problem, inputs: Sequence[Any], output: Any, scalars: Mapping[str, float]
) -> Run:
    """PyTorch's matmul (cuBLAS), fp32 without tf32, 16-bit types with fp32 sums; any layout."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = problem.operation.operand("a").dtype == "tf32"
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    a, b, *beside, c = tensors(problem, inputs, output)
    operation = problem.operation
    a = a.mT if operation.operand("a").axes[-1] != "k" else a
    b = b if operation.operand("b").axes[-1] != "k" else b.mT
    if operation.epilogue == matmul(bias=True, activation="gelu").epilogue:
        return lambda: torch._addmm_activation(beside[0], a, b, use_gelu=True)
    if beside:
        raise OperationError(f"{operation}: no peer of PyTorch for it")
    if "l" in operation.axes:
        return lambda: torch.bmm(a, b, out=c)
    if operation.operand("a").dtype == "e4m3":
        one = torch.ones((), device=a.device)
        return lambda: torch._scaled_mm(
            a, b, scale_a=one, scale_b=one, out_dtype=c.dtype, use_fast_accum=True
        )
    if c.dtype != a.dtype:
        return lambda: torch.mm(a, b, out_dtype=c.dtype, out=c)
    return lambda: torch.mm(a, b, out=c)


def peers(problem: Problem) -> tuple[str, ...]:
    """Return the name of PyTorch's function for a problem."""
    return ("torch_matmul",) if problem.operation.name == "matmul" else ()


def torch_rms_norm(
    problem: Problem, inputs: Sequence[Any], output: Any, scalars: Mapping[str, float]
) -> Run:
    """PyTorch's fused ``rms_norm`` of (x, w) with ``eps``."""
    import torch

    x, w, _ = tensors(problem, inputs, output)
    return lambda: torch.nn.functional.rms_norm(x, w.shape, w, scalars["eps"])


def torch_compiled_rms_norm(
    problem: Problem, inputs: Sequence[Any], output: Any, scalars: Mapping[str, float]
) -> Run:
    """``rms_norm`` as ``torch.compile`` makes it."""
    import torch

    compiled = torch.compile(torch_rms_norm(problem, inputs, output, scalars), dynamic=False)
    return lambda: compiled()


def torch_add(
    problem: Problem, inputs: Sequence[Any], output: Any, scalars: Mapping[str, float]
) -> Run:
    """PyTorch's ``add`` with ``alpha``: one kernel for a*x + b and for a*x + z."""
    import torch

    x, *rest, y = tensors(problem, inputs, output)
    other = rest[0] if rest else torch.tensor(scalars["b"], dtype=y.dtype)
    return lambda: torch.add(other, x, alpha=scalars["a"], out=y)


def torch_eager(
    problem: Problem, inputs: Sequence[Any], output: Any, scalars: Mapping[str, float]
) -> Run:
    """PyTorch's kernels for an elementwise expression, one for each operator."""
    operation = problem.operation
    if operation.reductions:
        raise OperationError(f"{operation.name}: this peer is elementwise; choose another")
    *given, y = tensors(problem, inputs, output)
    names = [o.name for o in operation.inputs]

    def run(*given: Any) -> Any:
        values = {**scalars, **dict(zip(names, given, strict=True))}
        return _evaluate(operation.epilogue, values).to(y.dtype)

    return lambda: run(*given)


def torch_compiled(
    problem: Problem, inputs: Sequence[Any], output: Any, scalars: Mapping[str, float]
) -> Run:
    """One kernel for an elementwise expression, made by ``torch.compile``."""
    import torch

    compiled = torch.compile(torch_eager(problem, inputs, output, scalars), dynamic=False)
    return lambda: compiled()


def tensors(problem: Problem, inputs: Sequence[Any], output: Any) -> tuple[Any, ...]:
    """Return CuPy arrays, the output last, as PyTorch's tensors that share their memory."""
    operands = problem.operation.operands
    return tuple(_tensor(x, o.dtype) for x, o in zip((*inputs, output), operands, strict=True))


def write_results(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    provenance: Mapping[str, Any],
    folder: Path = FOLDER,
    *,
    instead_of: Mapping[str, Any] | None = None,
    fields: tuple[str, ...] = (),
    beside: Mapping[str, Any] | None = None,
) -> Path:
    """Add rows to the results ``name``, a row of an equal case replacing the old one.

    The rows are of the run ``provenance``; old rows keep theirs.  ``instead_of``: old rows with
    these fields are dropped.  ``fields`` are further ones of each row, ``beside`` further entries
    of the file.  The file is replaced as a whole, so it is never half written.  Raises StoreError
    for a row with a field too many or too few, for two rows of one case, and where the file cannot
    be written.
    """
    allowed = (*ROW, *fields)
    for row in rows:
        if set(row) != set(allowed):
            odd = ", ".join(sorted(set(row) ^ set(allowed)))
            raise StoreError(
                f"results {name}: row with fields {odd} amiss; it has {', '.join(allowed)}"
            )
    if len({_case(row) for row in rows}) < len(rows):
        raise StoreError(f"results {name}: two rows of one case, sizes, type, schedule and peer")
    old, known = load_runs(name, folder)
    if instead_of:
        old = [r for r in old if any(r.get(f) != value for f, value in instead_of.items())]
    merged = {_case(row): (known[row["run"]], row) for row in old}
    merged |= {_case(row): (dict(provenance), row) for row in rows}
    runs: list[dict[str, Any]] = []
    numbered = []
    for run, row in merged.values():
        if run not in runs:
            runs.append(run)
        numbered.append({**row, "run": runs.index(run)})
    tree = {"provenance": dict(provenance), "runs": runs, **(beside or {}), "rows": numbered}
    return write_tree(folder / f"{name}.json", tree)


def write_tree(path: Path, tree: Mapping[str, Any]) -> Path:
    """Write JSON, a line for each row and each field beside the rows; replace the file as a whole.

    Raises StoreError where it cannot be written.
    """
    parts = [
        f"{json.dumps(name)}: {_lines(value) if isinstance(value, list) else json.dumps(value)}"
        for name, value in tree.items()
    ]
    text = "{\n" + ",\n".join(parts) + "\n}"
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text + "\n", encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StoreError(f"results {path}: {error.strerror}; give another folder") from None
    return path


def _lines(rows: list[Any]) -> str:
    return "[\n" + ",\n".join(f" {json.dumps(row)}" for row in rows) + "\n]" if rows else "[]"


def load_rows(name: str, folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Return the rows of the results ``name``; none if there is no such file.

    Raises StoreError for a file that is no results.
    """
    return [{f: v for f, v in row.items() if f != "run"} for row in load_runs(name, folder)[0]]


def load_runs(
    name: str, folder: Path = FOLDER
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows with their ``run``, and the runs; a file without has one, its provenance.

    Raises StoreError for a file that is no results.
    """
    path = folder / f"{name}.json"
    if not path.exists():
        return [], []
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        runs = [dict(run) for run in tree.get("runs", [tree["provenance"]])]
        rows = [{"run": 0, **row} for row in tree["rows"]]
        if not {row["run"] for row in rows} <= set(range(len(runs))):
            raise ValueError("a row of no run")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"results {path}: not readable ({error}); move it away") from None
    return rows, runs


def _case(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (*(json.dumps(row[name]) for name in ROW[:7]), row["peer"])


def _evaluate(expression: Expression, values: Mapping[str, Any]) -> Any:
    """Evaluate with PyTorch's operators."""
    import torch

    match expression:
        case Constant(number):
            return number
        case Value(name):
            return values[name]
        case Apply(operator, arguments):
            given = [_evaluate(a, values) for a in arguments]
            if operator in ("add", "sub", "mul", "div", "fma", "neg"):
                return OPERATORS[operator](*given)
            return getattr(torch, _TORCH.get(operator, operator))(*given)
    raise AssertionError(expression)


def _tensor(array: Any, dtype: str) -> Any:
    """Return a CuPy array as a tensor that shares its memory."""
    import torch

    if dtype == "e4m3":
        return torch.from_dlpack(array).view(torch.float8_e4m3fn)
    if dtype != "bf16":
        return torch.from_dlpack(array)
    return torch.from_dlpack(array.view("int16")).view(torch.bfloat16)
