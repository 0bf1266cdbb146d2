"""What the command line is asked to compute: an operation, its options, its sizes.

    matmul                  -m -n -k  --batch --layout --out-dtype --bias --activation --scale
    elementwise EXPRESSION  -i        --inputs
    rmsnorm, softmax        -i -j

In an EXPRESSION, as "a*x + b", the names u, v, w, x and z are arrays, or those that --inputs lists;
every other name is a scalar, and the result is y.  Functions are those of
``tinygpu.term.expression``. A command that is ``asking`` has all these options, and gets them as
one ``Asked``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

from tinygpu.cli.given import DTYPE, LAYOUT, machine_named
from tinygpu.errors import OperationError, nearest
from tinygpu.isa.memory import DTYPES
from tinygpu.term.operation import OPERATIONS, Operation, Problem, elementwise, matmul

__all__ = ["BATCH", "Asked", "I", "J", "K", "M", "N", "asking", "problem_of"]

M = Annotated[int | None, typer.Option("-m", help="Rows of c.")]
N = Annotated[int | None, typer.Option("-n", help="Columns of c.")]
K = Annotated[int | None, typer.Option("-k", help="Terms of each sum of a matmul.")]
I = Annotated[int | None, typer.Option("-i", help="Elements of a vector, or rows.")]  # noqa: E741
J = Annotated[int | None, typer.Option("-j", help="Elements of a row.")]
BATCH = Annotated[int | None, typer.Option(help="Matmuls of one batch.")]

_TAKES: Mapping[str, tuple[str, ...]] = {
    "matmul": (
        "m", "n", "k", "batch", "layout", "out_dtype", "bias", "activation", "scale"
    ),
    "elementwise": ("expression", "inputs", "i"),
    "rmsnorm": ("i", "j"),
    "softmax": ("i", "j"),
}  # fmt: skip
_SIZES = {"elementwise": {"i": 1 << 24}}
_SIZE = 4096


@dataclass(frozen=True, slots=True)
class Asked:
    """An operation and its options, as they were given; a size that was not has its default."""

    operation: Annotated[str, typer.Argument(help=f"{', '.join(OPERATIONS)}.")]
    expression: Annotated[
        str, typer.Argument(help='Of elementwise: "a*x + b"; u, v, w, x, z are arrays.')
    ] = ""
    m: M = None
    n: N = None
    k: K = None
    i: I = None
    j: J = None
    batch: BATCH = None
    dtype: DTYPE = ""
    out_dtype: Annotated[str, typer.Option(help="Type of a matmul's c; else the inputs'.")] = ""
    layout: LAYOUT = ""
    bias: Annotated[bool, typer.Option("--bias", help=r"Add bias\[n] to c.")] = False
    activation: Annotated[str, typer.Option(help="End with gelu, silu or relu.")] = ""
    scale: Annotated[bool, typer.Option("--scale", help="c = alpha a b + beta d.")] = False
    inputs: Annotated[str, typer.Option(help="Arrays of an expression, as x,z.")] = ""


def problem_of(asked: Asked, machine: str = "") -> Problem:
    """Return the problem; a machine that is named has a say in the type of the inputs.

    Raises OperationError for a name, a type, an option or a size that cannot be, MachineError.
    """
    name = asked.operation
    if name not in OPERATIONS:
        raise OperationError(f"operation {name}: {nearest(name, OPERATIONS)}")
    for field in fields(Asked):
        if field.name in ("operation", "dtype", *_TAKES[name]):
            continue
        if getattr(asked, field.name) != field.default:
            of = " and ".join(o for o, takes in _TAKES.items() if field.name in takes)
            raise OperationError(
                f"{_spelled(field.name)}: {name} has none, it is of {of}; "
                f"{name} takes {', '.join(map(_spelled, _TAKES[name]))} and --dtype"
            )
    tensor = machine and any(i.unit == "tensor" for i in machine_named(machine).instructions)
    dtype = asked.dtype or ("bf16" if tensor else "f32")
    if dtype not in DTYPES:
        raise OperationError(f"dtype {dtype}: {nearest(dtype, DTYPES)}")
    sizes = {"l": asked.batch} if asked.batch is not None else {}
    for axis in (field for field in _TAKES[name] if len(field) == 1):
        given = getattr(asked, axis)
        sizes[axis] = _SIZES.get(name, {}).get(axis, _SIZE) if given is None else given
    return Problem.of(_operation(asked, dtype), **sizes)


def _operation(asked: Asked, dtype: str) -> Operation:
    match asked.operation:
        case "matmul":
            return matmul(
                dtype,
                asked.out_dtype or None,
                asked.layout or "nn",
                scaled=asked.scale,
                bias=asked.bias,
                activation=asked.activation,
                batched=asked.batch is not None,
            )
        case "elementwise":
            if not asked.expression:
                raise OperationError('elementwise: give its expression too, as "a*x + b"')
            inputs = tuple(dict.fromkeys(n.strip() for n in asked.inputs.split(",") if n.strip()))
            return elementwise(asked.expression, inputs=inputs, dtype=dtype)
    return OPERATIONS[asked.operation](dtype)


def _spelled(field: str) -> str:
    if field == "expression":
        return "EXPRESSION"
    return f"-{field}" if len(field) == 1 else f"--{field.replace('_', '-')}"


def asking(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command, whose first argument is an ``Asked``, the options that make one."""
    hints = get_type_hints(Asked, include_extras=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    every = [
        inspect.Parameter(
            f.name,
            kind,
            annotation=hints[f.name],
            default=inspect.Parameter.empty if f.name == "operation" else f.default,
        )
        for f in fields(Asked)
    ]
    _, *own = inspect.signature(command, eval_str=True).parameters.values()
    every += [parameter.replace(kind=kind) for parameter in own]

    @wraps(command)
    def called(**given: Any) -> None:
        asked = Asked(**{f.name: given.pop(f.name) for f in fields(Asked)})
        command(asked, **given)

    called.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
    return called
