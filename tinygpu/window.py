"""The window: which trip counts decide all of them.

The pass of ``tinygpu.hazards`` is an automaton.  In the interior of a loop over k, away from guards
on the distance to its ends, iteration k + 1 is iteration k with every index moved by the loop's
coefficient.  So write the automaton's state relative to k: slots and indices less a*k, groups by
their age, and as one value whatever no wait or read can tell apart any more.  There are finitely
many such states, and once one comes back, at iterations i < j, everything that follows has
been seen: for K > j + q, where q is the reach of the guards, a run of K trips fails if and only if
the run of K - (j - i) does or the part before j does.  The trip counts 0..j+q decide.

>>> from tinygpu.program import Affine, Sync
>>> from tinygpu.skeleton import Act, Loop, Ring, Touch
>>> x, k = Ring("x", 3, False), Affine(0, (("k", 1),))
>>> turn = (Act("st", (Touch(x, k, True),)), Sync(), Act("ld", (Touch(x, k, False),)), Sync())
>>> print(window(Skeleton((("all", (Loop("k", 0, "trips", turn),)),))))
trips <= 8 decide

Source: ``docs/model-concurrency.md``, section "A box decides every trip count".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

from tinygpu.hazards import Scan
from tinygpu.program import Affine, WaitGroup
from tinygpu.skeleton import Act, Guard, Loop, Node, Skeleton, Touch, free_names, nodes
from tinygpu.unfolding import Instance, instances

__all__ = ["DoubtError", "Window", "window"]

_MANY_POINTS = 3000
_MANY_TURNS = 512
_ENDLESS = 1 << 40


@dataclass(frozen=True, slots=True)
class Window:
    """The largest value of each free name to check; ``doubt``: why that does not decide all.

    ``law``: the assumption that the doubt is about, one of ``tinygpu.assumptions.ASSUMPTIONS``.
    """

    most: tuple[tuple[str, int], ...]
    doubt: str = ""
    law: str = ""

    def points(self) -> Iterator[dict[str, int]]:
        """Yield every assignment, small ones first."""
        box = product(*(range(upper + 1) for _, upper in self.most))
        for point in sorted(box, key=lambda p: (sum(p), p)):
            yield dict(zip((name for name, _ in self.most), point, strict=True))

    @property
    def limits(self) -> str:
        """The box itself."""
        return ", ".join(f"{name} <= {upper}" for name, upper in self.most) or "no parameter"

    def __str__(self) -> str:
        if not self.most:
            return self.limits
        return f"{self.limits} only: {self.doubt}" if self.doubt else f"{self.limits} decide"


class DoubtError(Exception):
    """An assumption of the theorem does not hold: which, and why."""

    def __init__(self, law: str, message: str) -> None:
        super().__init__(message)
        self.law = law


def window(skeleton: Skeleton) -> Window:
    """Return the box of trip counts that decides every trip count, or one with its doubt."""
    names = sorted({n for _, body in skeleton.roles for n in free_names(body)})
    stages = [t.ring.stages for _, body in skeleton.roles for t in _touches(body)]
    usual = 2 * max(stages, default=1) + 2
    try:
        if len(skeleton.roles) > 1 and names:
            raise DoubtError("loops", "several roles have loops")
        if not names:
            return Window(())
        most = _Reach(skeleton.roles[0][1]).box(names, usual)
        if prod(m + 1 for m in most.values()) > _MANY_POINTS:
            raise DoubtError("points", "there are too many trip counts to try")
        return Window(tuple(most.items()))
    except DoubtError as doubt:
        while usual > 1 and (usual + 1) ** len(names) > _MANY_POINTS:
            usual -= 1
        return Window(tuple((n, usual) for n in names), str(doubt), doubt.law)


def _touches(body: tuple[Node, ...]) -> list[Touch]:
    return [t for node in nodes(body) if isinstance(node, Act) for t in node.touches]


class _Reach:
    """A role's body, read for the theorem: its one endless loop, and how far its guards reach."""

    def __init__(self, body: tuple[Node, ...]) -> None:
        self.body = body
        self.at = -1
        for position, node in enumerate(body):
            if isinstance(node, Loop) and isinstance(node.stop, str) and node.most is None:
                if self.at >= 0:
                    text = "two loops, one after the other, have a parameter's trips"
                    raise DoubtError("loops", text)
                self.at, self.loop, self.name = position, node, node.stop
        self.start = 0 if self.at < 0 else self.loop.start  # guards near the start reach to here
        self.end = 0  # and guards near the end this far
        self.constant: dict[str, int] = {}  # from here on a guard outside does not change
        self.steps: dict[str, int] = {}  # a ring's coefficient in the loop
        self.visit(body, {}, inside=False)
        if self.at >= 0:
            for touch in _touches(body[self.at + 1 :]):
                if self.steps.get(touch.ring.name):
                    text = f"ring {touch.ring.name} is used after the loop that turns it"
                    raise DoubtError("indices", text)

    def visit(
        self, body: tuple[Node, ...], ranges: Mapping[str, tuple[int, int]], *, inside: bool
    ) -> None:
        """Collect reaches and coefficients; raise DoubtError for what the theorem excludes."""
        for node in body:
            match node:
                case Loop(var, start, str(stop), inner, most):
                    if self.at >= 0 and node is self.body[self.at]:
                        self.visit(inner, ranges, inside=True)
                    elif most is None:
                        text = f"loop {var} with a parameter's trips is inside another"
                        raise DoubtError("loops", text)
                    else:
                        self.settle(stop, start + most)
                        self.visit(inner, ranges, inside=inside)
                case Loop(var, start, int(stop), inner):
                    if stop > start:
                        self.visit(inner, {**ranges, var: (start, stop - 1)}, inside=inside)
                case Guard(index, bound, inner):
                    self.guard(index, bound, ranges, inside=inside)
                    self.visit(inner, ranges, inside=inside)
                case Act(_, touches):
                    for touch in touches:
                        step, _, _ = self.split(touch.index, ranges, inside=inside)
                        if inside and self.steps.setdefault(touch.ring.name, step) != step:
                            text = f"ring {touch.ring.name} turns at two speeds"
                            raise DoubtError("indices", text)
                case _:
                    pass

    def split(
        self, index: Affine, ranges: Mapping[str, tuple[int, int]], *, inside: bool
    ) -> tuple[int, int, int]:
        """Return the endless loop's coefficient, and the least and greatest of the rest."""
        step, low, high = 0, index.constant, index.constant
        for name, factor in index.terms:
            if isinstance(factor, str):
                raise DoubtError("indices", f"index {index} has a parameter's multiple")
            if inside and name == self.loop.var and name not in ranges:
                step = factor
            elif name in ranges:
                reach = [factor * end for end in ranges[name]]
                low, high = low + min(reach), high + max(reach)
            else:
                text = f"index {index} depends on {name}, which no loop counts"
                raise DoubtError("indices", text)
        if step < 0:
            raise DoubtError("indices", f"index {index} runs backwards")
        return step, low, high

    def guard(
        self,
        index: Affine,
        bound: int | str,
        ranges: Mapping[str, tuple[int, int]],
        *,
        inside: bool,
    ) -> None:
        """Take up a guard ``index < bound``."""
        step, low, high = self.split(index, ranges, inside=inside)
        if step == 0:
            if isinstance(bound, str):
                self.settle(bound, high + 1)
        elif isinstance(bound, int):
            self.start = max(self.start, -((low - bound) // step))  # false from here on
        elif step == 1 and bound == self.name:
            self.end = max(self.end, high)
        else:
            text = f"guard {index} < {bound} is no distance to its loop's end"
            raise DoubtError("guards", text)

    def settle(self, name: str, value: int) -> None:
        """Nothing but the endless loop itself changes with ``name`` from ``value`` on."""
        self.constant[name] = max(self.constant.get(name, 0), value)

    def box(self, names: list[str], usual: int) -> dict[str, int]:
        """Return for each name the value up to which all have to be checked."""
        most = {name: self.constant.get(name, 0) for name in names}
        if self.at < 0:
            return most
        others = Window(tuple((n, m) for n, m in most.items() if n != self.name))
        if prod(m + 1 for _, m in others.most) > _MANY_POINTS:
            raise DoubtError("points", "there are too many trip counts to try")
        settled = most[self.name]
        for env in others.points():
            first, again = self.turns(env)
            upper = max(again + self.end, settled + again - first, usual)
            most[self.name] = max(most[self.name], upper)
        return most

    def turns(self, others: Mapping[str, int]) -> tuple[int, int]:
        """Return two iterations that begin in the same state, each relative to its own number."""
        env = {**others, self.name: _ENDLESS}
        scan = Scan(env)
        scan.run(instances(self.body[: self.at], 0, env))
        waits = [n.pending for n in nodes(self.body) if isinstance(n, WaitGroup)]
        eldest = max(waits, default=0) + 1
        lowest: dict[str, int] = {}
        for instance in self.iteration(self.start, env):
            for cell in instance.cells:
                ring = cell.touch.ring.name
                moved = cell.index - self.steps[ring] * self.start
                lowest[ring] = min(lowest.get(ring, moved), moved)
        seen: dict[object, int] = {}
        for number in range(self.loop.start, self.start + _MANY_TURNS):
            if number >= self.start:
                state = self.state(scan, number, lowest, eldest)
                if state in seen:
                    return seen[state], number
                seen[state] = number
            scan.run(self.iteration(number, env))
        raise DoubtError("points", f"no state came back in {_MANY_TURNS} iterations")

    def iteration(self, number: int, env: Mapping[str, int]) -> Iterator[Instance]:
        """Yield the instances of one iteration of the endless loop."""
        return instances(self.loop.body, 0, {**env, self.loop.var: number})

    def state(self, scan: Scan, number: int, lowest: Mapping[str, int], eldest: int) -> object:
        """Return the pass's state at the start of an iteration, relative to it."""
        stages = {t.ring.name: t.ring.stages for t in _touches(self.body)}

        def moved(key: tuple[str, int, int]) -> tuple[str, int]:
            ring, _, slot = key
            return ring, (slot - self.steps.get(ring, 0) * number) % stages[ring]

        def aged(ring: str, index: int) -> int | None:
            if not (step := self.steps.get(ring, 0)):
                return index
            here = index - step * number
            return here if here >= lowest.get(ring, _ENDLESS) else None  # nobody asks for it again

        held = {
            (*moved(key), aged(key[0], index)) for key, x in scan.content.items() for index in x
        }
        commits = scan.commits.get(0, 0)
        pending = {
            (*moved(key), min(commits - group, eldest))
            for key, waiting in scan.pending.items()
            for _, group, _ in waiting
        }
        read, written = (frozenset(map(moved, keys)) for keys in (scan.read, scan.written))
        return frozenset(held), frozenset(pending), read, written, scan.left is not None
