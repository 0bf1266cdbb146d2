"""What a model ranks best: over several machines, by what ptxas says, by what terms compute.

    found = ranked(spaces, 10, {space.machine.name: () for space in spaces})
    found = assembled(spaces, found, 10)         # by ptxas's registers and spills
    found, meanings, wrong = computing(spaces, found)

``watch`` shows what goes on: ``with watch("search simt") as progress: progress(done, all)``.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from tinygpu.codegen.run.agreement import computed
from tinygpu.codegen.run.build import Builders
from tinygpu.deadline import NEVER, Deadline
from tinygpu.errors import IllegalScheduleError, TinyGpuError
from tinygpu.meaning.identity import Meaning
from tinygpu.search.exact.best import Ranked, Ranking, rank
from tinygpu.search.time.cost import cost
from tinygpu.search.time.launch import Assembled
from tinygpu.space.space import Space

__all__ = ["Watch", "assembled", "computing", "ranked", "unseen"]

Watch = Callable[[str], AbstractContextManager[Callable[..., None]]]
"""What shows that something goes on, by its name: gives ``progress(done, all, text)``."""


@contextmanager
def unseen(_: str) -> Iterator[Callable[..., None]]:
    """Show nothing."""
    yield lambda *_: None


def ranked(
    spaces: Sequence[Space],
    top: int,
    spreads: Mapping[str, tuple[str, ...]],
    *,
    exact: bool = False,
    until: Deadline = NEVER,
    share: float = 1.0,
    watch: Watch = unseen,
) -> Ranking:
    """Return the best of spaces of one problem, proven or only climbed to.

    No two are of one machine and alike in its ``spreads``, if it has some.  With a deadline none is
    proven: all spaces are climbed in at once, by a ``share`` of the cores, until soon after it.
    Raises IllegalScheduleError, which says why, if all spaces are empty.
    """
    with _no_collection():
        if until.open:
            every = list(_in_turn(spaces, top, spreads, exact, watch))
        else:
            every = list(_at_once(spaces, top, spreads, until, share, watch))
    found = [one for one in every if isinstance(one, Ranking)]
    empty = [one for one in every if isinstance(one, IllegalScheduleError)]
    best = sorted((one for of in found for one in of.best), key=lambda one: one.seconds)[:top]
    if not found:
        raise empty[-1]
    return Ranking(
        best=tuple(best),
        raw=sum(space.raw for space in spaces),
        admissible=sum(of.admissible for of in found),
        scored=sum(of.scored for of in found),
        proven=all(of.proven for of in found),
    )


def _in_turn(
    spaces: Sequence[Space],
    top: int,
    spreads: Mapping[str, tuple[str, ...]],
    exact: bool,
    watch: Watch,
) -> Iterator[Ranking | IllegalScheduleError]:
    """Yield what is found in each space, the latest machine first: it bounds the others."""
    best: list[float] = []
    for space in reversed(spaces):
        with watch(f"search {space.machine.name}") as progress:
            try:
                found = rank(
                    space, k=top, exact=exact, spread=spreads[space.machine.name],
                    below=best[-1] if len(best) == top else math.inf, progress=progress,
                )  # fmt: skip
            except IllegalScheduleError as error:
                yield error
                continue
        best = sorted((*best, *(one.seconds for one in found.best)))[:top]
        yield found


def _at_once(
    spaces: Sequence[Space],
    top: int,
    spreads: Mapping[str, tuple[str, ...]],
    until: Deadline,
    share: float,
    watch: Watch,
) -> Iterator[Ranking | IllegalScheduleError]:
    """Yield what is climbed to in each space until then: all at once, by a share of the cores.

    Machines without tensor cores come after the others, and only if what they need for the
    arithmetic alone may be less than what those found.
    """
    least = {space.machine.name: _fma_seconds(space) for space in spaces}
    best: list[float] = []
    for some in (
        [space for space in spaces if not least[space.machine.name]],
        [space for space in spaces if least[space.machine.name]],
    ):
        below = best[-1] if len(best) == top else math.inf
        asked = [space for space in some if least[space.machine.name] < below]
        for one in _climbed(asked, top, spreads, below, until, share, watch):
            if isinstance(one, Ranking):
                best = sorted((*best, *(found.seconds for found in one.best)))[:top]
            yield one


def _fma_seconds(space: Space) -> float:
    """Return the seconds for a problem's arithmetic by fma; 0 for a machine of tensor cores."""
    if any(one.unit == "tensor" for one in space.machine.instructions):
        return 0.0
    device, problem = space.device, space.problem
    rate = 2 * device.fma_f32_per_cycle_per_sm * device.sms * device.clock_hz
    return problem.operation.flops(problem.sizes) / rate


def _climbed(
    spaces: Sequence[Space],
    top: int,
    spreads: Mapping[str, tuple[str, ...]],
    below: float,
    until: Deadline,
    share: float,
    watch: Watch,
) -> Iterator[Ranking | IllegalScheduleError]:
    """Yield what is climbed to in each of these spaces, what takes ``below`` or more left out."""
    if not spaces:
        return
    told: dict[str, tuple[int, int]] = {}
    names = ", ".join(space.machine.name for space in spaces)
    with watch(f"search {names}") as progress, ThreadPoolExecutor(len(spaces)) as pool:

        def begun(space: Space) -> Future[Ranking]:
            def tell(done: int, whole: int) -> None:
                told[space.machine.name] = done, whole
                every = list(told.values())
                progress(sum(done for done, _ in every), sum(whole for _, whole in every))

            return pool.submit(
                rank, space, k=top, exact=False, spread=spreads[space.machine.name],
                below=below, progress=tell, until=until, share=share / len(spaces),
            )  # fmt: skip

        for one in [begun(space) for space in reversed(spaces)]:
            try:
                yield one.result()
            except IllegalScheduleError as error:
                yield error


def assembled(
    spaces: Sequence[Space], found: Ranking, top: int, *, watch: Watch = unseen
) -> Ranking:
    """Return the first few of the best, ordered by their times with ptxas's registers and spills.

    Nothing is run.  What ptxas does not take is left out.  Raises AssemblyError if it takes none.
    """
    machines = {space.machine.name: space.machine for space in spaces}
    problem, device = spaces[0].problem, spaces[0].device
    schedules = [one.schedule for one in found.best]
    programs = [one.term(machines[one.machine], problem.operation) for one in schedules]
    best: list[Ranked] = []
    failed: list[TinyGpuError] = []
    with watch("assemble") as progress, Builders() as builders:
        codes = builders.codes([(p, device.arch, problem.sizes) for p in programs])
        for schedule, program, code in zip(schedules, programs, codes, strict=True):
            if isinstance(code, TinyGpuError):
                failed.append(code)
            else:
                timed = cost(program, problem.sizes, device, code=Assembled(*code))
                best.append(Ranked(float(timed.seconds), schedule, timed))
            progress(len(best) + len(failed), len(programs), "")
    if not best:
        raise failed[0]
    best.sort(key=lambda one: one.seconds)
    return replace(found, best=tuple(best[:top]), proven=False)


def computing(
    spaces: Sequence[Space], found: Ranking, *, watch: Watch = unseen
) -> tuple[Ranking, tuple[Meaning, ...], list[str]]:
    """Leave out those of the best that do not compute their operation.

    Returns the others, what they compute, and why the first were left out.  Raises
    IllegalScheduleError if all were.
    """
    machines = {space.machine.name: space.machine for space in spaces}
    operation = spaces[0].problem.operation
    kept, meanings, wrong = [], [], []
    programs = [one.schedule.term(machines[one.schedule.machine], operation) for one in found.best]
    with watch("execute small instances") as progress:
        progress(0, len(programs), "")
        asked = zip(found.best, computed(programs), strict=True)
        for number, (one, meaning) in enumerate(asked, 1):
            progress(number, len(programs), "")
            if not meaning.wrong:
                kept.append(one)
                meanings.append(meaning)
            else:
                wrong.append(f"{one.schedule} {meaning}")
    if not kept:
        raise IllegalScheduleError(
            f"computes: {wrong[0]} (and {len(wrong) - 1} more); let terms compute {operation}"
        )
    return replace(found, best=tuple(kept)), tuple(meanings), wrong


@contextmanager
def _no_collection() -> Iterator[None]:
    """Search without the collector: it would look through what a search keeps (4 to 9 % of it)."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
