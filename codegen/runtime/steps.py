"""A plan's kernels: which arrays each takes, as views, and the memory that lies between them.

A step's operand is an array of the plan with each axis cut into some of the step's, slowest first:
the same memory by other strides.  A workspace is a part of memory that a stream's launches share;
its arrays lie one after another, without gaps inside.

>>> whole = View(4096, "bf16", (3, 8), (8, 1))
>>> cut = seen("a", whole, (("m",), ("l", "k")), ("l", "m", "k"), {"l": 2, "m": 3, "k": 4})
>>> cut.shape, cut.strides
((2, 3, 4), (4, 8, 1))

Source: ``tinygpu/term/plan.py``, whose steps these are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tinygpu.codegen.runtime.contract import Contract, check, formula_value, sizes_of
from tinygpu.codegen.runtime.views import WIDTHS, View
from tinygpu.errors import LaunchError

__all__ = ["check_steps", "seen", "step_views", "workspace_bytes"]

_APART = 256  # bytes that arrays of a workspace are aligned to, as allocators do


def seen(
    name: str,
    array: View,
    cuts: tuple[tuple[str, ...], ...],
    axes: tuple[str, ...],
    sizes: Mapping[str, int],
) -> View:
    """Return an array as a step sees it.  Raises LaunchError where a cut is not even."""
    found: dict[str, tuple[int, int]] = {}
    for size, stride, cut in zip(array.shape, array.strides, cuts, strict=True):
        inner = stride
        for axis in reversed(cut):
            found[axis] = sizes[axis], inner
            inner *= sizes[axis]
        if (parts := math.prod(sizes[axis] for axis in cut)) != size:
            raise LaunchError(
                f"{name}: {size} is cut into {' x '.join(str(sizes[a]) for a in cut)} = {parts}; "
                "parts have to be equal: pad it, or choose a kernel that cuts it otherwise"
            )
    shape, strides = zip(*(found[axis] for axis in axes), strict=True)
    return replace(array, shape=shape, strides=strides)


def step_views(contract: Contract, views: Sequence[View], memory: int) -> list[list[View]]:
    """Return the views of each step's arguments, with workspaces from an address on.

    Raises LaunchError where a cut is not even.
    """
    sizes = sizes_of(contract, [view.shape for view in views])
    known = {a.name: view for a, view in zip(contract.arguments, views, strict=True)}
    device = next((view.device for view in views if view.device >= 0), -1)
    found = []
    for step in contract.steps:
        own = {axis: formula_value(size, sizes) for axis, size in step.sizes}
        mine = []
        for argument, (_, array, cuts) in zip(step.contract.arguments, step.uses, strict=True):
            if array not in known:
                shape = tuple(own[axis] for cut in cuts for axis in cut)
                strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
                known[array] = View(memory, argument.dtype, shape, strides, device)
                size = math.prod(shape) * WIDTHS[argument.dtype]
                memory += -(-size // _APART) * _APART
            axes = tuple(map(str, argument.axes))  # of a plan all are sizes
            mine.append(seen(array, known[array], cuts, axes, own))
        found.append(mine)
    return found


def workspace_bytes(contract: Contract, views: Sequence[View]) -> int:
    """Return how many bytes a plan's workspaces take together."""
    names = {a.name for a in contract.arguments}
    ends = [
        view.span[1]
        for step, mine in zip(contract.steps, step_views(contract, views, 0), strict=True)
        for (_, array, _), view in zip(step.uses, mine, strict=True)
        if array not in names
    ]
    return max(ends, default=0)


def check_steps(contract: Contract, views: Sequence[View]) -> None:
    """Check the views of each kernel, of one that is no plan its own.  Raises LaunchError."""
    if not contract.steps:
        check(contract, views)
    for step, mine in zip(contract.steps, step_views(contract, views, 0), strict=True):
        check(step.contract, mine)
