"""What the command line is asked to compute: an operation, its options, its sizes.

    matmul                  -m -n -k  --batch --layout --out-dtype --bias --activation --gate
                            --scale --scales
    grouped                 -g -m -n -k  --groups --layout --out-dtype --bias --activation --gate
                            --scales
    elementwise EXPRESSION  -i        --inputs
    rmsnorm, softmax        -i -j
    rmsnorm_matmul          -m -n -k  --layout --out-dtype
    attention               -b --heads --kv-heads -m -n -d  --causal --mask --pages --lengths
    FILE.py:OPERATION       an option for each of its axes: -i, --rows

In an EXPRESSION, as "a*x + b", the names u, v, w, x and z are arrays, or those that --inputs lists;
every other name is a scalar, and the result is y.  Functions are those of
``tinygpu.term.expression``.  An operation of the user's is an ``Operation`` in a Python file, or a
function without arguments that returns one.  A command that is ``asking`` has all these options,
and gets them as one ``Asked``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

from tinygpu.cli.given import DTYPE, LAYOUT
from tinygpu.cli.sizes import SIZES, every_size, sizes_of
from tinygpu.errors import OperationError, nearest
from tinygpu.isa.memory import DTYPES
from tinygpu.machines.file import is_file, machine_named, operation_in
from tinygpu.search.tuning.shape import ends_of
from tinygpu.term.operation import (
    OPERATIONS,
    Operation,
    Problem,
    attention,
    elementwise,
    grouped_matmul,
    matmul,
    rmsnorm_matmul,
)

__all__ = ["Asked", "asking", "operation_of", "problem_of"]

_TAKES: Mapping[str, tuple[str, ...]] = {
    "matmul": (*("dtype", "layout", "out_dtype", "bias", "activation", "gate", "scale", "scales"),),
    "grouped": (
        *("dtype", "layout", "out_dtype", "bias", "activation", "gate", "scales", "groups"),
    ),
    "elementwise": ("expression", "dtype", "inputs"),
    "rmsnorm": ("dtype",),
    "rmsnorm_matmul": ("dtype", "layout", "out_dtype"),
    "softmax": ("dtype",),
    "attention": ("dtype", "causal", "mask", "window", "lse", "pages", "lengths", "scales"),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """An operation, its options and sizes, as they were given."""

    operation: Annotated[
        str, typer.Argument(help=f"{', '.join(OPERATIONS)}, or FILE.py:NAME for your own.")
    ]
    expression: Annotated[
        str, typer.Argument(help='Of elementwise: "a*x + b"; u, v, w, x, z are arrays.')
    ] = ""
    sizes: SIZES = None
    dtype: DTYPE = ""
    out_dtype: Annotated[str, typer.Option(help="Type of a matmul's c; else the inputs'.")] = ""
    layout: LAYOUT = ""
    bias: Annotated[bool, typer.Option("--bias", help=r"Add bias\[n] to c.")] = False
    activation: Annotated[str, typer.Option(help="End with gelu, silu or relu.")] = ""
    gate: Annotated[
        str, typer.Option(help="c = silu(a gate) (a b), or by gelu or relu: two products.")
    ] = ""
    scale: Annotated[bool, typer.Option("--scale", help="c = alpha a b + beta d.")] = False
    scales: Annotated[
        bool, typer.Option("--scales", help=r"Times scale_a\[m] scale_b\[n], as of e4m3; of heads.")
    ] = False
    causal: Annotated[bool, typer.Option("--causal", help="Of attention: --mask causal.")] = False
    mask: Annotated[str, typer.Option(help="Of attention: none, causal or window:LEFT:RIGHT.")] = ""
    window: Annotated[
        tuple[int, int] | None,
        typer.Option(metavar="LEFT RIGHT", help="Of attention: --mask window:LEFT:RIGHT."),
    ] = None
    lse: Annotated[bool, typer.Option("--lse", help="Of attention: log-sum-exp, too.")] = False
    pages: Annotated[
        int, typer.Option(metavar="KEYS", help="Of attention: keys and values in pages of so many.")
    ] = 0
    lengths: Annotated[
        bool, typer.Option("--lengths", help="Of attention: each sequence has its own keys.")
    ] = False
    inputs: Annotated[str, typer.Option(help="Arrays of an expression, as x,z.")] = ""
    groups: Annotated[
        list[str] | None,
        typer.Option(
            help="Rows of groups: even, zipf, or each, as 512,0,1536. Of dispatch repeatable."
        ),
    ] = None


def problem_of(asked: Asked, machine: str = "") -> Problem:
    """Return the problem; a machine that is named has a say in the type of the inputs.

    Raises OperationError for a name, a type, an option or a size that cannot be or is not given,
    MachineError.
    """
    operation = operation_of(asked, machine)
    sizes = sizes_of(operation.name, operation.axes, asked.sizes or ())
    every_size(operation, sizes)
    if operation.groups and asked.groups:
        if asked.groups[1:]:
            said = " ".join(f"--groups {text}" for text in asked.groups)
            raise OperationError(f"{said}: a problem has one of them; dispatch takes several")
        ends = {operation.groups.ends: ends_of(asked.groups[0], operation.groups, sizes)}
        return Problem.of(operation, **sizes, **ends)
    return Problem.of(operation, **sizes)


def operation_of(asked: Asked, machine: str = "") -> Operation:
    """Return the operation, as ``problem_of`` does."""
    name, own = asked.operation, is_file(asked.operation)
    if not own and name not in OPERATIONS:
        raise OperationError(
            f"operation {name}: {nearest(name, OPERATIONS)}; or give FILE.py:NAME for your own"
        )
    mine = operation_in(name) if own else None
    takes = ("groups",) if mine and mine.groups else _TAKES.get(name, ())
    for field in fields(Asked):
        if field.name in ("operation", "sizes", *takes):
            continue
        if getattr(asked, field.name) not in (field.default, []):
            of = " and ".join(o for o, options in _TAKES.items() if field.name in options)
            way = "write it in the file" if own else f"it takes {', '.join(map(_spelled, takes))}"
            raise OperationError(f"{_spelled(field.name)}: {name} has none, it is of {of}; {way}")
    if mine:
        return mine
    tensor = machine and any(i.unit == "tensor" for i in machine_named(machine).instructions)
    dtype = asked.dtype or ("bf16" if tensor else "f32")
    if dtype not in DTYPES:
        raise OperationError(f"dtype {dtype}: {nearest(dtype, DTYPES)}")
    match name:
        case "matmul":
            return matmul(
                dtype,
                asked.out_dtype or None,
                asked.layout or "nn",
                scaled=asked.scale,
                scales=asked.scales,
                bias=asked.bias,
                activation=asked.activation,
                gate=asked.gate,
                batched=any(text.startswith(("batch=", "l=")) for text in asked.sizes or ()),
            )
        case "grouped":
            return grouped_matmul(
                asked.dtype or "bf16",
                asked.out_dtype or None,
                asked.layout or "nt",
                scales=asked.scales,
                bias=asked.bias,
                activation=asked.activation,
                gate=asked.gate,
            )
        case "rmsnorm_matmul":
            return rmsnorm_matmul(
                asked.dtype or "bf16", asked.out_dtype or None, asked.layout or "nt"
            )
        case "elementwise":
            if not asked.expression:
                raise OperationError('elementwise: give its expression too, as "a*x + b"')
            inputs = tuple(dict.fromkeys(n.strip() for n in asked.inputs.split(",") if n.strip()))
            return elementwise(asked.expression, inputs=inputs, dtype=dtype)
        case "attention":
            said = {f"--mask {asked.mask}": asked.mask} if asked.mask else {}
            said |= {"--causal": "causal"} if asked.causal else {}
            if asked.window:
                said["--window"] = "window:{}:{}".format(*asked.window)
            if len({*said.values()}) > 1:
                one, other, *_ = reversed(said)
                raise OperationError(f"{one}: {other} is another; give one of them")
            mask = next(iter(said.values()), "none")
            more: dict[str, Any] = {"pages": asked.pages, "lengths": asked.lengths}
            more |= {"lse": asked.lse, "scales": asked.scales}
            return attention(asked.dtype or "bf16", mask=mask, **more)
    return OPERATIONS[name](dtype)


def _spelled(field: str) -> str:
    return "EXPRESSION" if field == "expression" else f"--{field.replace('_', '-')}"


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
