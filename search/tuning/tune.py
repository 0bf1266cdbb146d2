"""The fastest kernel of a problem: what ``tinygpu search --measure`` does, for scripts.

    problem = Problem.of(matmul("bf16", layout="nt"), m=4096, n=4096, k=4096)
    with Store("store.db") as store:
        found = tune(problem, effort=Effort(seconds=8), store=store)
    (best, measured), *others = found.finalists

The model ranks the schedules of all machines that the GPU runs (``ranking.py``), while the process
that measures starts; from its best the search climbs by measuring (``climb.py``).

Source: ``docs/measuring.md``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from tinygpu.deadline import NEVER, Deadline
from tinygpu.devices.device import Device, device_of, load_device
from tinygpu.errors import (
    DeviceError,
    LaunchError,
    MachineError,
    OperationError,
    ScheduleError,
    require_kind,
)
from tinygpu.machines import MACHINES
from tinygpu.search.neighbourhood import Candidate
from tinygpu.search.tuning.climb import EFFORT, Effort, Tuned, client_of, climb, why_no_gpu
from tinygpu.search.tuning.ranking import Watch, ranked, unseen
from tinygpu.space.space import Space
from tinygpu.term.machine import Machine
from tinygpu.term.operation import Problem

if TYPE_CHECKING:
    from tinygpu.codegen.run.measure import Crew
    from tinygpu.search.exact.best import Ranking
    from tinygpu.space.measurement import Results
    from tinygpu.term.operation import Operation

__all__ = ["BESIDE_SECONDS", "RANKED", "fitting", "runnable", "searched", "tune"]

RANKED = 96
"""Schedules of the model that a search by measuring starts from, one of each spread."""
BESIDE_SECONDS, _TELLING_SECONDS = 8.4, 1.2
"""What a search by measuring may take beside its budget, less Python's start; then, to tell."""
_RANKING_SHARE = 0.25
"""Of the whole time of a search by measuring, what the model's ranking takes at most."""


def tune(
    problem: Problem,
    *,
    device: Device | None = None,
    machines: Sequence[Machine] = (),
    effort: Effort = EFFORT,
    store: Results | None = None,
    scheduler: str = "",
    watch: Watch = unseen,
) -> Tuned:
    """Search by measuring on this GPU; returns the finalists, the fastest first, and the peers.

    ``device`` is the file of the GPU that is here if none is given, ``machines`` all that can do
    the problem on it.  It takes the seconds of ``effort`` and at most ten more.  What the store
    knows is not measured again, so that a search that was stopped goes on; ``scheduler`` is of a
    dask cluster whose GPUs measure.  Raises DeviceError for a GPU without a file, OperationError if
    no machine can do the problem, LaunchError without a GPU that runs one or if no schedule runs.
    """
    require_kind("tune: problem", problem, Problem, OperationError)
    require_kind("tune: effort", effort, Effort, ScheduleError)
    if device is not None:
        require_kind("tune: device", device, Device, DeviceError)
    for one in machines:
        require_kind("tune: machine", one, Machine, MachineError)
    until = Deadline.within(effort.seconds + BESIDE_SECONDS, time.monotonic)
    chip = device or _device_here()
    able = fitting(problem.operation, chip, machines or [*MACHINES.values()], problem.sizes)
    spaces = runnable([Space(one, problem, chip) for one in able], scheduler)
    with client_of(scheduler) as client:
        _, found = searched(spaces, effort, store=store, client=client, watch=watch, until=until)
    return found


def runnable(spaces: Sequence[Space], scheduler: str = "") -> list[Space]:
    """Return the spaces whose kernels can run here; all, if others measure.

    Raises LaunchError, with every reason, if none can.
    """
    why_not = ["" if scheduler else why_no_gpu(space.machine) for space in spaces]
    if all(why_not):
        raise LaunchError("; ".join(dict.fromkeys(why_not)))
    return [space for space, reason in zip(spaces, why_not, strict=True) if not reason]


def searched(
    spaces: Sequence[Space],
    effort: Effort,
    *,
    spreads: Mapping[str, tuple[str, ...]] | None = None,
    store: Results | None = None,
    client: Any = None,
    watch: Watch = unseen,
    until: Deadline = NEVER,
) -> tuple[Ranking, Tuned]:
    """Rank the schedules of spaces of one problem, and climb from the best by measuring.

    No two that it starts from are of one machine and alike in its ``spreads``, by default its
    ``Machine.apart``.  ``client`` is as ``client_of`` gives it.  Raises what ``ranked`` and
    ``climb`` raise.
    """
    problem = spaces[0].problem
    apart = {space.machine.name: space.machine.apart for space in spaces} | {
        name: names for name, names in (spreads or {}).items() if names
    }
    with _beginning() if client is None else nullcontext() as crew:
        soon = until.sooner(_RANKING_SHARE * until.left())
        found = ranked(spaces, max(effort.finalists, RANKED), apart, until=soon, watch=watch)
        first = [Candidate(one.schedule, float(one.seconds)) for one in found.best]
        with watch("measure") as progress:
            tuned = climb(
                spaces, first, store=store, effort=effort, crew=crew, client=client,
                tell=_telling(progress, problem.operation.flops(problem.sizes)),
                until=until.before(_TELLING_SECONDS),
            )  # fmt: skip
    return found, tuned


def fitting(
    operation: Operation,
    device: Device,
    machines: Sequence[Machine],
    sizes: Mapping[str, int] | None = None,
) -> list[Machine]:
    """Return the machines that can do an operation, of these sizes, and run on a device.

    Raises OperationError, which says why each cannot, if there is none.
    """
    found, why_not = [], []
    for machine in machines:
        lacking = [i for i in machine.instructions if not i.runs_on(device.arch)]
        try:
            machine.check(operation)
            if sizes is not None:
                machine.check_sizes(sizes)
        except OperationError as error:
            if len(machines) == 1:
                raise
            if operation.name in machine.operations and not lacking:
                why_not.append(str(error))
            continue
        if lacking:
            needs = f"{lacking[0].name} is of {lacking[0].arch}"
            why_not.append(f"machine {machine.name}: {needs}, and {device.name} is {device.arch}")
        else:
            found.append(machine)
    if not found and not why_not:
        raise OperationError(
            f"operation {operation.name}: no machine that ships does it; give your own, whose "
            "operations name it, by --machine FILE.py:Class"
        )
    if not found:
        raise OperationError(
            f"{operation.name} on {device.name}: {'; '.join(why_not)}; or choose another --device"
        )
    return found


def _device_here() -> Device:
    """Return the file of the GPU here.  Raises DeviceError if there is none."""
    from tinygpu.codegen.run.provenance import device_and_driver

    gpu, _ = device_and_driver()
    if not (name := device_of(gpu)):
        way = "tinygpu calibrate -o FILE.json measures it, load_device(FILE.json) reads that"
        raise DeviceError(f"device: no file is of {gpu}; {way}")
    return load_device(name)


@contextmanager
def _beginning() -> Iterator[Crew]:
    """Give a crew whose worker starts while the model ranks."""
    from tinygpu.codegen.run.measure import COARSE, Crew

    with Crew(COARSE.worker) as crew:
        crew.begin(COARSE.limit_seconds)
        yield crew


def _telling(
    progress: Callable[..., None], flops: float
) -> Callable[[int, int | None, float], None]:
    def tell(done: int, most: int | None, best: float) -> None:
        text = f"best {best * 1e6:.4g} us, {flops / best / 1e12:.4g} TFLOP/s"
        progress(done, most, text if math.isfinite(best) else "")

    return tell
