"""Operations, sizes and named points by what they are called: what records draw from and name.

>>> print(operation_of("matmul bf16 f32 nt bias relu").epilogue)
max((acc + bias), 0.0)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tinygpu.devices.device import Device, load_device
from tinygpu.errors import OperationError
from tinygpu.isa.memory import DTYPES
from tinygpu.machines import MACHINES, ampere, blackwell, hopper, simt
from tinygpu.term.expression import parse
from tinygpu.term.machine import Machine, Value
from tinygpu.term.operation import (
    ACTIVATIONS,
    OPERATIONS,
    Operand,
    Operation,
    Problem,
    attention,
    elementwise,
    reduce,
)

__all__ = [
    *("LAYOUTS", "POINTS", "SEED", "device_of", "one", "operation_of", "place_of"),
    *("random_operation", "random_sizes", "types_of"),
]

SEED = 221126
LAYOUTS = ("nn", "nt", "tn", "tt")
DEVICES = ("h200", "b200", "a100", "rtx3060")
EXPRESSIONS = ("a*x + b", "max(x*w, z)", "x*rsqrt(y0 + z*z)", "x / (1.0 + ex2(w))", "x")
ATTENTIONS = ("{} causal", "{} pages=64", "e4m3", "e4m3 causal scales", "{} causal lengths")
"""Attentions beside the one without a mask; a type is put in."""
REDUCED = {
    "moment": ("x*x", "x*rcp(acc)"),
    "centred": ("x", "a*(x - acc/j)"),
    "weighted": ("x*w", "max(x*w - acc, 0)"),
}
"""Reductions over rows: what is summed, and what is made of the sum."""
_SIMT_CHANGES: Mapping[str, Mapping[str, Value]] = {
    "register 1": {"pipeline": "register", "stages": 2, "issue": 1},
    "cp.async 2": {"pipeline": "cp.async", "stages": 2},
    "cp.async 3": {"pipeline": "cp.async", "stages": 3, "issue": 1},
    "leaves": {"edges": "return"},
    "whole tiles": {"guards": "tile"},
}
_SIMT: Mapping[str, Mapping[str, Value]] = {
    **simt.LADDER,
    **{name: {**simt.LADDER["warp-tiled"], **c} for name, c in _SIMT_CHANGES.items()},
}
POINTS: Mapping[str, Mapping[str, Mapping[str, Value]]] = {
    "simt": _SIMT, "ampere": ampere.STARTS, "hopper": hopper.STARTS,
    "blackwell": blackwell.STARTS,
}  # fmt: skip
"""The named points of the machines that have some."""


def operation_of(text: str) -> Operation:
    """Return the operation that a lot's name says.

    >>> print(operation_of("elementwise f16 a*x"))
    elementwise: y[i] f16 = (a * x)
    """
    name, dtype, *words = text.split(" ")
    match name:
        case "matmul" | "grouped":
            output, layout, *more = words
            flags: dict[str, Any] = {w: True for w in more if w not in ACTIVATIONS}
            activation = "".join(w for w in more if w in ACTIVATIONS)
            return OPERATIONS[name](dtype, output, layout, activation=activation, **flags)
        case "elementwise":
            return elementwise(" ".join(words), dtype=dtype)
        case "attention":
            flags = {word: True for word in words if word in ("lengths", "scales")}
            pages = sum(int(word[6:]) for word in words if word.startswith("pages="))
            masks = [w for w in words if w not in flags and not w.startswith("pages=")]
            return attention(dtype, mask=" ".join(masks) or "none", pages=pages, **flags)
        case "reduce":
            combine, epilogue = map(parse, REDUCED[words[0]])
            arrays = [Operand("x", ("i", "j"), dtype), Operand("w", ("j",), dtype)]
            read = {*combine.names(), *epilogue.names()}
            inputs = tuple(o for o in arrays if o.name in read)
            return reduce(combine, epilogue, inputs=inputs, output=Operand("y", ("i", "j"), dtype))
    return OPERATIONS[name](dtype)


def place_of(name: str) -> tuple[Machine, Problem, Device]:
    """Return what a lot's name says: ``MACHINE DEVICE | OPERATION | SIZES``.

    Raises LookupError or a TinyGpuError if there is no such thing any more.
    """
    place, text, sizes = name.split(" | ")
    machine, device = place.split()
    extents = {axis: int(n) for axis, n in (size.split("=") for size in sizes.split())}
    return MACHINES[machine], Problem.of(operation_of(text), **extents), load_device(device)


def device_of(machine: Machine, number: int) -> Device:
    """Return one of the devices that a machine runs on."""
    devices = [d for d in DEVICES if machine.runs_on(load_device(d).arch)]
    return load_device(devices[(number + number // 4) % len(devices)])


def one(rng: np.random.Generator, values: Sequence[Any]) -> Any:
    """Draw one of the values."""
    return values[int(rng.integers(len(values)))]


def types_of(machine: Machine) -> list[tuple[str, str]]:
    """Return the types of a matmul's inputs and output that a machine is asked for."""
    pairs = [(a, c) for a, outputs in machine.outputs.items() for c in outputs]
    return pairs or [(t, t) for t in machine.dtypes] + [("f16", "f32"), ("bf16", "f32")]


def random_operation(
    machine: str, number: int, rng: np.random.Generator, *, grouped: bool = False
) -> str:
    """Return an operation that the machine can do: types and layout follow from a number.

    A machine of matmuls is asked for one with or without groups.
    """
    it = MACHINES[machine]
    if it.operations == ("elementwise",):
        turn, which = divmod(number, len(EXPRESSIONS))
        return f"elementwise {it.dtypes[turn % len(it.dtypes)]} {EXPRESSIONS[which]}"
    if "matmul" not in it.operations:
        ends = [f"{name} {{}}" for name in it.operations if name != "reduce"]
        ends += [f"attention {more}" for more in ATTENTIONS if _does(it, f"attention {more}")]
        ends += [f"reduce {{}} {name}" for name in REDUCED if "reduce" in it.operations]
        turn, which = divmod(number, len(ends))
        types = it.dtypes or tuple(it.outputs)
        return ends[which].format(types[turn % len(types)])
    pairs = types_of(it)
    name, layouts = ("grouped", ("nt", "nn")) if grouped else ("matmul", LAYOUTS)
    options = ("bias",) if grouped else ("scaled", "bias", "batched")
    turn, which = divmod(number, len(layouts))
    plain = [name, *pairs[turn % len(pairs)], layouts[which]]
    while True:
        words = [word for word in options if rng.random() < 0.3]
        words += [one(rng, tuple(ACTIVATIONS))] if rng.random() < 0.4 else []
        try:
            it.check(operation_of(" ".join([*plain, *words])))
        except OperationError:
            continue
        return " ".join([*plain, *words])


def _does(machine: Machine, text: str) -> bool:
    """Return whether a machine does an operation, of its first type where the name leaves it."""
    try:
        machine.check(operation_of(text.format(machine.dtypes[0] if machine.dtypes else "bf16")))
    except OperationError:
        return False
    return True


def random_sizes(operation: Operation, rng: np.random.Generator, *, long: bool) -> dict[str, int]:
    """Draw sizes: even, ragged or of a few elements; what is contiguous is often whole 16 B.

    Of groups there are a few, as of a batch's matmuls.
    """
    sizes, arrays = {}, (*operation.inputs, *operation.outputs)
    few = {"l", operation.groups.axis} if operation.groups else {"l"}
    for axis in operation.axes:
        most = (8192 if long else 1024) << (8 if len(operation.axes) == 1 else 0)
        steps = [16 // DTYPES[o.dtype].bytes for o in arrays if o.axes[-1] == axis]
        whole = max(steps, default=1) if rng.random() < 0.8 else 1
        step = one(rng, (whole, whole, 64, 256)) if axis not in few else 1
        drawn = int(np.exp(rng.uniform(0.0, np.log(4 if axis in few else most))))
        sizes[axis] = max(1, drawn // step) * step
    if operation.pages:
        sizes["n"] += -sizes["n"] % operation.pages.size
    return sizes
