"""Unfolding: a skeleton's statement instances, at given values of its parameters.

An instance is a statement at values of the loop variables around it; its *cells* say which slot of
which ring it touches, slot = index mod stages.  One thread's instances stand in program order; all
threads of a role have the same ones, except those that an exit has removed.

>>> from tinygpu.program import Affine, Sync
>>> from tinygpu.skeleton import Act, Loop, Ring, Touch
>>> put = Act("st.shared", (Touch(Ring("x", 2, False), Affine(1, (("k", 1),)), True),))
>>> for instance in instances((Loop("k", 0, "trips", (put, Sync())),), 0, {"trips": 2}):
...     print(instance, [(c.key[2], c.index) for c in instance.cells])
st.shared: write x@(k + 1) at k=0 [(1, 1)]
bar.sync 0 at k=0 []
st.shared: write x@(k + 1) at k=1 [(0, 2)]
bar.sync 0 at k=1 []

Source: ``docs/model-concurrency.md``, section "Instances and edges".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tinygpu.program import Commit, Sync, WaitGroup
from tinygpu.skeleton import Act, Guard, Leave, Loop, Node, Touch

__all__ = ["Cell", "Instance", "instances"]


@dataclass(frozen=True, slots=True)
class Cell:
    """A touch at an index; ``key`` = (ring, role or -1 if the CTA shares it, slot)."""

    key: tuple[str, int, int]
    index: int
    touch: Touch


@dataclass(frozen=True, slots=True)
class Instance:
    """A statement of a role at ``values`` of the loop variables around it."""

    role: int
    node: Act | Sync | Commit | WaitGroup | Leave
    values: tuple[tuple[str, int], ...] = ()
    cells: tuple[Cell, ...] = ()

    def __str__(self) -> str:
        at = ", ".join(f"{name}={number}" for name, number in self.values)
        return f"{self.node} at {at}" if at else str(self.node)


def instances(
    body: tuple[Node, ...],
    role: int,
    env: Mapping[str, int],
    *,
    values: tuple[tuple[str, int], ...] = (),
) -> Iterator[Instance]:
    """Yield a body's instances in program order; ``env`` holds the values of all free names."""
    for node in body:
        match node:
            case Loop(var, start, stop, inner, most):
                end = env[stop] if isinstance(stop, str) else stop
                for number in range(start, end)[:most]:
                    here = (*values, (var, number))
                    yield from instances(inner, role, {**env, var: number}, values=here)
            case Guard(index, bound, inner):
                if index.evaluate(env) < (env[bound] if isinstance(bound, str) else bound):
                    yield from instances(inner, role, env, values=values)
            case Act(_, touches, _):
                cells = []
                for touch in touches:
                    at, ring = touch.index.evaluate(env), touch.ring
                    key = (ring.name, role if ring.private else -1, at % ring.stages)
                    cells.append(Cell(key, at, touch))
                yield Instance(role, node, values, tuple(cells))
            case _:
                yield Instance(role, node, values)
