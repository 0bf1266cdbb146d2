"""Quantities: what can be said of a schedule's term in one number, for wishes and proofs.

A name in a wish is a decision of the machine, a size of the problem, or one of ``QUANTITIES``, in
this order.  Like laws, quantities are written once and read ints and arrays.

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import Problem, matmul
>>> problem = Problem.of(matmul(), m=64, n=64, k=64)
>>> chosen = Chosen(LADDER["tuned"])
>>> case = Case.of(Simt().program(matmul(), chosen), problem.sizes, load_device("h200"))
>>> named_values(("stages", "m", "smem_bytes", "threads"), chosen, problem.sizes, case)
{'stages': 1, 'm': 64, 'smem_bytes': 16640, 'threads': 256}

Source: the laws that judge them (``tinygpu.legality.laws.LAWS``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from tinygpu.legality.reach import Case, product
from tinygpu.legality.resources import registers_at_once
from tinygpu.numbers import Number
from tinygpu.term.machine import Chosen
from tinygpu.term.tensor_memory import used_columns

__all__ = ["QUANTITIES", "Named", "Quantity", "named_values"]

Named = str | Number
"""What a name stands for: of a decision it may be a word."""


class Quantity(NamedTuple):
    """A number of a term: what it is, and how it is read."""

    meaning: str
    of: Callable[[Case], Number]


def _cluster(case: Case) -> Number:
    return product(extent for _, extent in case.program.cluster)


QUANTITIES: Mapping[str, Quantity] = {
    "smem_bytes": Quantity("shared memory of a CTA", lambda case: case.program.smem_bytes),
    "threads": Quantity("threads of a CTA", lambda case: case.program.threads),
    "registers": Quantity("32-bit registers that a thread holds at once", registers_at_once),
    "tmem_columns": Quantity(
        "columns of tensor memory of a CTA", lambda case: used_columns(case.program)
    ),
    "cluster_ctas": Quantity("CTAs of a cluster", _cluster),
    "ctas": Quantity(
        "CTAs of the grid, which persistent ones share",
        lambda case: product(case.context.grid.values()) * _cluster(case),
    ),
    "sms": Quantity("SMs of the device", lambda case: case.context.chip.sms),
}


def named_values(
    names: Iterable[str], chosen: Chosen, sizes: Mapping[str, int], case: Case | None
) -> dict[str, Named]:
    """Return what names stand for; ``case`` may be None if none is a quantity."""
    found: dict[str, Named] = {}
    for name in names:
        if name in vars(chosen):
            found[name] = getattr(chosen, name)
        elif name in sizes:
            found[name] = sizes[name]
        else:
            assert case is not None
            found[name] = QUANTITIES[name].of(case)
    return found
