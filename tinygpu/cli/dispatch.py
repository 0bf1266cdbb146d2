"""The command ``dispatch``: a few kernels that serve every shape.

It chooses kernels and a rule (``dispatching.py``) and writes a bundle, which is called without
tinyGPU (``codegen/runtime/bundle.py``), and which ``which`` and ``plot bundle`` explain.
"""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import numpy as np
import typer

from tinygpu.cli.asked import Asked, asking, operation_of
from tinygpu.cli.console import bar, resumable, say, say_json, table, time_text
from tinygpu.cli.given import (
    DEVICE,
    JSON,
    REPRODUCIBLE,
    certificate_of,
    device_given,
    in_order,
    machine_named,
    machines_for,
)
from tinygpu.cli.shapes import shapes_of
from tinygpu.cli.sizes import spelled, texts_of
from tinygpu.devices.device import label, load_device
from tinygpu.errors import (
    IllegalScheduleError,
    LaunchError,
    OperationError,
    ScheduleError,
    TinyGpuError,
    nearest,
)
from tinygpu.search import selection
from tinygpu.search.tuning import dispatching
from tinygpu.search.tuning.climb import why_no_gpu
from tinygpu.search.tuning.dispatching import Job, ShapeTimes, Times
from tinygpu.search.tuning.shape import Shape
from tinygpu.term.plan import kernels_of
from tinygpu.term.schedule import Schedule, to_json

if TYPE_CHECKING:
    from tinygpu.codegen.run.build import Built
    from tinygpu.codegen.run.bundle import BundledKernel
    from tinygpu.term.operation import Operation
    from tinygpu.term.plan import Term

__all__ = ["Dispatch", "dispatch"]

Result = TypeVar("Result")
Lost = dict[Schedule, tuple[Shape | None, str]]
"""Candidates that failed, each with where, or None, and why."""
_MOST_TOLD = 8
"""Failures that are printed, one a line."""
_MOST_KERNELS, _ANCHORS, _UNMEASURED_ANCHORS = 64, 64, 12
_SPREADS, _PART = 16, 16
"""Schedules of the model that are measured at an anchor; and those that a process predicts."""


@asking
def dispatch(
    asked: Asked,
    out: Annotated[Path, typer.Option(help="The bundle: a folder, or one file that ends in .zip.")],
    layer: Annotated[
        list[str] | None,
        typer.Option(help="qkv, o, gate_up, down (of an 8B Llama), or NAME=NxK; repeatable."),
    ] = None,
    shapes: Annotated[
        Path | None,
        typer.Option(help="A .json or .csv of sizes by axis, and weight, layer if you like."),
    ] = None,
    kernels: Annotated[int, typer.Option("--kernels", help="Kernels at most.")] = 8,
    aim: Annotated[
        str, typer.Option(help="What is least: the mean slowdown, or the worst.")
    ] = "mean",
    rule: Annotated[str, typer.Option(help="The rule of the bundle; it holds all.")] = "measured",
    machine: Annotated[
        list[str] | None, typer.Option(help="Whose kernels; repeatable. Else all that fit.")
    ] = None,
    device: DEVICE = "",
    points: Annotated[int, typer.Option(min=1, max=4096, help="Sizes taken of a range.")] = 64,
    candidates: Annotated[
        int, typer.Option(min=1, max=512, help="Kernels that are measured at every shape, at most.")
    ] = 32,
    measure: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Measure if there is a GPU.")
    ] = True,
    budget: Annotated[
        float, typer.Option(min=0, max=86_400, help="Seconds of climbing at each searched shape.")
    ] = 0.0,
    reproducible: REPRODUCIBLE = False,
    as_json: JSON = False,
) -> None:
    """Choose a few kernels that serve every shape, and the rule; write them as a bundle.

    A size may be a range or a list: -m 1:8192, -m 1,16,256:4096.  A matmul is bf16 and nt if
    nothing else is said.
    """
    from tinygpu.codegen.run.assemble import find_ptxas, known_fault
    from tinygpu.codegen.run.bundle import bundle_parts, refuse_other, write_bundle
    from tinygpu.codegen.run.provenance import provenance

    for option, given, known in (
        ("--aim", aim, selection.AIMS),
        ("--rule", rule, (*dispatching.RULES, "first call")),
    ):
        if given not in known:
            raise ScheduleError(f"{option} {given}: {nearest(given, known)}")
    if not 1 <= kernels <= _MOST_KERNELS:
        raise ScheduleError(f"--kernels {kernels}: at least 1, at most {_MOST_KERNELS}")
    if asked.operation == "matmul":
        asked = replace(asked, dtype=asked.dtype or "bf16", layout=asked.layout or "nt")
    operation, chip = operation_of(asked), device_given(device)
    if operation.pages or operation.lengths:
        raise OperationError(
            f"dispatch: {operation.name} with pages or lengths; a bundle has no rule for what only "
            "the device knows: build kernels that search finds"
        )
    texts = texts_of(operation.name, operation.axes, asked.sizes or ())
    routings = asked.groups or (["even"] if operation.groups else [])
    wanted = shapes_of(operation, texts, layer or (), shapes, points, routings)
    whose = machine or [one.name for one in machines_for(operation, chip)]
    every = [one for name in whose for one in machines_for(operation, chip, name)]
    for one in every:
        for shape in wanted:
            one.check_sizes(shape.sizes)
    names = {one.name: name for one, name in zip(every, whose, strict=True)}
    if reproducible:
        in_order({one: {} for one in every})
    find_ptxas()
    refuse_other(out)
    why_not = "it was not asked for"
    if measure:
        reasons = {one.name: why_no_gpu(one) for one in every}
        why_not = "; ".join(dict.fromkeys(reasons.values())) if all(reasons.values()) else ""
        names = names if why_not else {own: n for own, n in names.items() if not reasons[own]}
    store = out.with_name(f"{out.name}.db")
    out.parent.mkdir(parents=True, exist_ok=True)
    kept = f"measurements are kept in {store}; the same command goes on"
    again = "nothing is lost; the same command starts again"
    with resumable(again if why_not else kept), ExitStack() as open_:
        made = Dispatch(
            operation, wanted, names, device or chip.name, why_not, store,
            reproducible=reproducible,
        )  # fmt: skip
        chosen = open_.enter_context(made)
        chosen.find(budget, kernels, candidates)
        chosen.time()
        chosen.settle(kernels, aim, chip.arch)
    record = {"provenance": provenance(shlex.join(["tinygpu", *sys.argv[1:]]))}
    manifest = {**record, **chosen.tree(label(chip), rule, aim)}
    parts = bundle_parts(chosen.members(chip.arch, label(chip)), manifest)
    write_bundle(out, parts)
    tree = json.loads(parts["bundle.json"])
    if as_json:
        say_json({name: value for name, value in tree.items() if name != "files"})
        return
    show(tree)
    if fault := known_fault():
        say(fault)
    middle = wanted[len(wanted) // 2]
    say(f"bundle: {out}; ask it: tinygpu which {out} {spelled(middle.along)} {middle.size}")


class Dispatch(ExitStack):
    """One choice of kernels, step by step: find, time, settle; then members and tree.

    A context manager, which ends the processes that search and measure.

    ``names``: machines by their own name, each as it is named in another process.  ``why_not``
    says why nothing is measured, or "".  ``reproducible``: all kernels add along k in order.
    ``failed`` tells what lost its place on the way: what it is, where it failed, and why.
    """

    def __init__(
        self,
        operation: Operation,
        shapes: Sequence[Shape],
        names: Mapping[str, str],
        device: str,
        why_not: str,
        store: Path,
        *,
        reproducible: bool = False,
    ) -> None:
        from tinygpu.codegen.runtime.driver import devices

        super().__init__()
        self.operation, self.shapes, self.device = operation, shapes, device
        self.names, self.why_not, self.store = names, why_not, store
        self.reproducible = reproducible
        self.machines = {own: machine_named(name) for own, name in names.items()}
        self.gpus = 0 if why_not else max(1, devices())
        self.fleet = self.enter_context(dispatching.Fleet(self.gpus))
        self.schedules: list[Schedule] = []
        self.timed: list[ShapeTimes] = []
        self.again: list[ShapeTimes] = []
        self.kernels: list[int] = []
        self.predicted: Times
        self.times: Times
        self.failed: list[dict[str, Any]] = []
        self._built: dict[Schedule, Built | TinyGpuError] = {}

    def job(self, shape: Shape, **how: Any) -> Job:
        """Return what a process is told about a shape."""
        machines, store = tuple(self.names.values()), self.store if self.gpus else None
        return Job(
            machines, self.device, self.operation, shape, store,
            reproducible=self.reproducible, **how,
        )  # fmt: skip

    def find(self, seconds: float, count: int, most: int) -> None:
        """Search at shapes for candidates, and predict their times at every shape.

        At most ``most`` are kept, from which ``count`` will be chosen.
        """
        anchors = dispatching.anchors_of(
            self.shapes, _ANCHORS if self.gpus else _UNMEASURED_ANCHORS
        )
        how = {"spreads": _SPREADS} if self.gpus else {}
        with dispatching.Fleet(0) if self.gpus else nullcontext(self.fleet) as fleet:
            with bar(f"search at {len(anchors)} shapes") as progress:
                jobs = [self.job(one, **how) for one in anchors]
                found = self._done(fleet.each(dispatching.ranked_at, jobs, progress), jobs)
            if self.gpus:
                jobs = [self.job(j.shape, first=tuple(of), seconds=seconds) for j, of in found]
                with bar(f"try at {len(jobs)} shapes") as progress:
                    tried = self._done(self.fleet.each(dispatching.tried_at, jobs, progress), jobs)
                lost = {s: (j.shape, why) for j, (_, failed) in tried for s, why in failed.items()}
                found = [(j, [p for p in ran if p[0] not in lost]) for j, (ran, _) in tried]
                for schedule, (shape, why) in lost.items():
                    self._note(schedule, shape, why)
            every = list(dict.fromkeys(schedule for _, of in found for schedule, _ in of))
            if not every and self.failed:
                why = self.failed[-1]["reason"]
                raise LaunchError(f"dispatch: no schedule ran at any shape; the last: {why}")
            if not every:
                raise ScheduleError(f"dispatch: no machine fits any shape; {self._why_none()}")
            parts = [tuple(every[i : i + _PART]) for i in range(0, len(every), _PART)]
            jobs = [self.job(anchors[0], schedules=p, shapes=tuple(self.shapes)) for p in parts]
            with bar(f"predict {len(every)} kernels") as progress:
                told = self._done(fleet.each(dispatching.predicted_at, jobs, progress), jobs)
        every = [schedule for job, _ in told for schedule in job.schedules]
        times = np.array([row for _, rows in told for row in rows]).T
        number = {schedule: j for j, schedule in enumerate(every)}
        seen = {
            self.shapes.index(job.shape): {number[s]: t for s, t in of if s in number}
            for job, of in found
            if of and self.gpus
        }
        kept = dispatching.pruned(times, seen, count, most, [s.weight for s in self.shapes])
        self.schedules = [every[j] for j in kept]
        self.predicted = times[:, kept]

    def _done(
        self, found: Sequence[Result | TinyGpuError], jobs: Sequence[Job]
    ) -> list[tuple[Job, Result]]:
        """Return the jobs that were done, with what they gave; note the others.

        Raises the first's error if none was.
        """
        done: list[tuple[Job, Result]] = []
        for job, one in zip(jobs, found, strict=True):
            if not isinstance(one, TinyGpuError):
                done.append((job, one))
            elif all(isinstance(other, TinyGpuError) for other in found):
                raise one
            else:
                for what in job.schedules or ("the search",):
                    self._note(what, job.shape, str(one))
        return done

    def _note(self, what: Schedule | str, shape: Shape | None, why: str) -> None:
        """Note what lost its place, where, and why."""
        if isinstance(what, Schedule):
            said = " ".join(f"{name}={value}" for name, value in what.decisions)
            what = f"{what.machine} {said}"
        self.failed.append({"what": what, "at": shape and shape.sizes, "reason": why})

    def _lose(self, lost: Lost) -> None:
        """Take candidates' places away.  Raises LaunchError if none is left."""
        for schedule, (shape, why) in lost.items():
            self._note(schedule, shape, why)
        kept = [j for j, schedule in enumerate(self.schedules) if schedule not in lost]
        if not kept:
            why = self.failed[-1]["reason"]
            raise LaunchError(f"dispatch: none of {len(lost)} kernels is left; the last: {why}")
        self.schedules = [self.schedules[j] for j in kept]
        self.predicted, self.times = self.predicted[:, kept], self.times[:, kept]

    def _why_none(self) -> str:
        """Return why no machine has a legal schedule of the first shape."""
        from tinygpu.search.exact.best import rank
        from tinygpu.space.space import Space

        (problem, _), *_ = self.shapes[0].problems(self.operation)
        found = []
        for machine in self.machines.values():
            try:
                rank(Space(machine, problem, load_device(self.device)), 1, exact=False)
            except IllegalScheduleError as error:
                found.append(str(error))
        return "; ".join(found)

    def time(self) -> None:
        """Measure all candidates at all shapes."""
        self.times = self.predicted
        if not self.gpus:
            return
        jobs = [self.job(shape, schedules=tuple(self.schedules)) for shape in self.shapes]
        with bar(f"measure at {len(jobs)} shapes") as progress:
            self.timed = dispatching.timed_by(self.fleet, jobs, progress)
        for number, why in sorted(self.fleet.retired.items()):
            self._note(f"GPU {number}", None, why)
        if len(cards := {one.device for one in self.timed if one.device}) > 1:
            raise LaunchError(
                f"dispatch: the GPUs differ: {', '.join(sorted(cards))}; name those of one kind in "
                "CUDA_VISIBLE_DEVICES"
            )
        self.times = np.array([one.seconds for one in self.timed])
        for shape, one in zip(self.shapes, self.timed, strict=True):
            if not any(map(math.isfinite, one.seconds)):
                raise LaunchError(
                    f"dispatch: none of {len(one.seconds)} kernels ran at {shape.sizes}; the "
                    f"first: {one.failed[0]}"
                )
        self._lose(self._failing(self.timed, self.schedules))

    def _failing(self, timed: Sequence[ShapeTimes], schedules: Sequence[Schedule]) -> Lost:
        """Return which of the first schedules of each failed where they are legal, and why.

        One that is wrong or crashes somewhere is trusted nowhere.
        """
        column = [self.schedules.index(schedule) for schedule in schedules]
        found: Lost = {}
        for i, (shape, one) in enumerate(zip(self.shapes, timed, strict=True)):
            for j, schedule, why in zip(column, schedules, one.failed, strict=False):
                if why and math.isfinite(self.predicted[i, j]):
                    found.setdefault(schedule, (shape, why))
        return found

    def settle(self, count: int, aim: str, arch: str) -> None:
        """Choose, build and score; what fails on the way loses its place, and others are chosen.

        Raises ScheduleError or LaunchError if those that are left do not serve every shape.
        """
        while True:
            try:
                self.choose(count, aim)
            except ScheduleError as error:
                if not self.failed:
                    raise
                raise ScheduleError(
                    f"{error}; {len(self.failed)} failed, the last: {self.failed[-1]['reason']}"
                ) from None
            lost = self.build(arch) or self.score()
            if not lost:
                return
            self._lose(lost)

    def choose(self, count: int, aim: str) -> None:
        """Choose the kernels and the rules, which switch where the model says."""
        weights = [s.weight for s in self.shapes]
        self.choice = selection.choose(self.times, count, weights, aim=aim)
        served = self.choice.served
        first = {j: served.index(j) for j in self.choice.kernels}  # by the smallest they serve
        self.kernels = sorted(self.choice.kernels, key=lambda j: self.shapes[first[j]].size)
        self.tables = dispatching.tables_of(
            self.times, self.predicted, self.shapes, self.kernels, aim, self._model()
        )

    def _model(self) -> Callable[[int, Shape], float]:
        """Return what predicts a candidate's time at a shape; infinite where it is illegal."""
        chip = load_device(self.device)
        known: dict[int, dispatching.Predictor] = {}

        def time(column: int, shape: Shape) -> float:
            schedule = self.schedules[column]
            if column not in known:
                program = schedule.term(self.machines[schedule.machine], self.operation)
                known[column] = dispatching.Predictor(program, chip)
            return known[column](shape)

        return time

    def score(self) -> Lost:
        """Measure the chosen anew, beside the fastest at each shape and its peers.

        Returns which of the chosen failed.
        """
        if not self.gpus:
            return {}
        mine = [self.schedules[j] for j in self.kernels]
        jobs = []
        for shape, times, timed in zip(self.shapes, self.times, self.timed, strict=True):
            fastest = [int(j) for j in times.argsort(kind="stable")[:2]]
            beside = [*mine, *(self.schedules[j] for j in fastest)]
            peers = tuple(sorted(timed.peers, key=lambda name: timed.peers[name])[:2])
            again = {"schedules": tuple(dict.fromkeys(beside)), "peers": peers, "anew": True}
            jobs.append(self.job(shape, rounds=9, **again))
        with bar(f"score at {len(jobs)} shapes") as progress:
            self.again = dispatching.timed_by(self.fleet, jobs, progress)
        return self._failing(self.again, mine)

    def build(self, arch: str) -> Lost:
        """Build the chosen kernels; return which cannot be built, and why."""
        from tinygpu.codegen.run.agreement import require_computes
        from tinygpu.codegen.run.build import build_many

        if self.gpus:
            from tinygpu.codegen.run.launch import device_arch

            arch = device_arch()
        fresh: dict[Schedule, Term] = {}
        for schedule in (self.schedules[j] for j in self.kernels):
            if schedule not in self._built:
                program = schedule.term(self.machines[schedule.machine], self.operation)
                try:
                    fresh[schedule] = require_computes(program).program
                except TinyGpuError as error:
                    self._built[schedule] = error
        every = build_many([(program, arch, None) for program in fresh.values()])
        self._built |= zip(fresh, every, strict=True)
        mine = ((s, self._built[s]) for s in (self.schedules[j] for j in self.kernels))
        return {s: (None, str(one)) for s, one in mine if isinstance(one, TinyGpuError)}

    def members(self, arch: str, device: str) -> list[BundledKernel]:
        """Return the kernels, built.  Raises AssemblyError, ProgramError."""
        from tinygpu.codegen.run.arguments import contract_of
        from tinygpu.codegen.run.bundle import BundledKernel
        from tinygpu.term.text import text_of

        self.build(arch)
        found = []
        for number, j in enumerate(self.kernels):
            schedule = self.schedules[j]
            built = self._built[schedule]
            if isinstance(built, TinyGpuError):
                raise built
            program = schedule.term(self.machines[schedule.machine], self.operation)
            hint = self.shapes[int((self.times[:, j] / self.times.min(axis=1)).argmin())]
            problem, _ = hint.problems(self.operation)[0]  # where it does best beside the others
            text = to_json(schedule, problem, device=device)
            name, contract = f"k{number:02}", contract_of(program)
            terms = tuple((text_of(one), certificate_of(one)[0]) for one in kernels_of(program))
            found.append(BundledKernel(name, schedule.machine, contract, built, text, terms))
        return found

    def tree(self, device: str, rule: str, aim: str) -> dict[str, Any]:
        """Return the manifest, but for the kernels."""
        from tinygpu.search.time.cost import cost

        chip = load_device(self.device)
        own = self.times[:, self.kernels]
        table_of = self.tables.get(rule) or self.tables["measured"]
        served = dispatching.served_of(table_of, self.shapes, own)
        programs = [
            self.schedules[j].term(self.machines[self.schedules[j].machine], self.operation)
            for j in self.kernels
        ]
        rows = []
        for i, shape in enumerate(self.shapes):
            problem, _ = shape.problems(self.operation)[0]
            parts = [
                cost(program, problem.sizes, chip).bottleneck if math.isfinite(own[i, j]) else ""
                for j, program in enumerate(programs)
            ]
            row = {
                **shape.sizes,
                **({"routings": dict(shape.routings)} if shape.routings else {}),
                "weight": shape.weight,
                "layer": shape.layer,
                "kernel": served[i],
                "predicted": [_finite(t) for t in self.predicted[i, self.kernels]],
                "bottleneck": parts,
                "measured": [_finite(t) for t in own[i]] if self.timed else [],
                "best": _finite(self.times[i].min()),
            }
            if self.again:
                row |= self._scored(i)
            rows.append(row)
        timed = self.timed[0] if self.timed else None
        return {
            "operation": str(self.operation),
            "device": device,
            "measured_on": {"device": timed.device, "driver": timed.driver} if timed else None,
            "why_not_measured": self.why_not,
            "along": self.shapes[0].along,
            "axes": list(self.operation.axes),
            "rule": rule,
            "aim": aim,
            "reproducible": self.reproducible,
            "candidates": len(self.schedules),
            "failed": self.failed,
            "slowdown": self.choice.slowdown,
            "bound": self.choice.bound,
            "rules": self.tables,
            "shapes": rows,
            "scores": self.scores(),
        }

    def _scored(self, i: int) -> dict[str, Any]:
        """Return a shape's second measurement: of the kernels, the fastest and the peers."""
        again = self.again[i]
        return {
            "scored": [_finite(t) for t in again.seconds[: len(self.kernels)]],
            "scored_best": _finite(min(again.seconds)),
            "peer": min(again.peers, key=lambda name: again.peers[name], default=""),
            "peer_seconds": min(again.peers.values(), default=None),
        }

    def scores(self) -> dict[str, dict[str, float]]:
        """Return each rule's slowdown against the fastest candidate of each shape, and its peers.

        On the second measurement, if there is one; "first call" adds what its timing costs.
        """
        own = self.times[:, self.kernels]
        count = len(self.kernels)
        seen = np.array([a.seconds[:count] for a in self.again]) if self.again else own
        best = np.array([min(a.seconds) for a in self.again] or self.times.min(axis=1))
        peers = [min(a.peers.values(), default=math.nan) for a in self.again]
        share = np.array([s.weight for s in self.shapes])
        share = share / share.sum()
        found = {}
        rules = {
            rule: dispatching.served_of(rows, self.shapes, own)
            for rule, rows in self.tables.items()
        }
        rules["first call"] = [int(j) for j in own.argmin(axis=1)]
        for rule, served in rules.items():
            mine = seen[np.arange(len(served)), served]
            slow = mine / best
            told = {"mean": float(np.exp(share @ np.log(slow))), "worst": float(slow.max())}
            if peers and np.isfinite(peers).all():
                ahead = np.array(peers) / mine
                told |= {"ahead_of_peer": float(np.exp(share @ np.log(ahead)))}
            found[rule] = told
        if self.timed:
            finite = np.where(np.isfinite(own), own, 0.0)
            found["first call"]["first_call_seconds"] = float(np.median(finite.sum(axis=1)) * 6)
        return found


def _finite(seconds: float) -> float | None:
    return float(seconds) if math.isfinite(seconds) else None


def show(tree: Mapping[str, Any]) -> None:
    """Print the kernels, what they serve, and the rules side by side."""
    rows, along = [], tree["along"]
    for number, kernel in enumerate(tree["kernels"]):
        mine = [s for s in tree["shapes"] if s["kernel"] == number]
        sizes = sorted(s[along] for s in mine)
        rows.append(
            [
                kernel["name"],
                kernel["machine"],
                str(kernel["registers"]),
                str(len(mine)),
                f"{sizes[0]} to {sizes[-1]}" if sizes else "none",
            ]
        )
    others = [axis for axis in tree["axes"] if axis != along]
    many = len({tuple(s[axis] for axis in others) for s in tree["shapes"]})
    title = f"{tree['operation'].partition(':')[0]}, {len(tree['shapes'])} shapes"
    table(
        f"{title} of {many} layers" if many > 1 else title,
        ["kernel", "machine", "#registers", "#shapes", along],
        rows,
    )
    gap = tree["slowdown"] / tree["bound"] - 1
    sure = "no other set is better" + (f" by more than {gap:.2%}" if gap >= 5e-5 else "")
    say(f"chosen among {tree['candidates']} kernels for the {tree['aim']} slowdown; {sure}")
    for one in tree["failed"][:_MOST_TOLD]:
        at = f" at {' x '.join(map(str, one['at'].values()))}" if one["at"] else ""
        say(f"failed, and left out: {one['what']}{at}: {one['reason']}")
    if more := tree["failed"][_MOST_TOLD:]:
        say(f"failed, and left out: {len(more)} more; bundle.json has them under 'failed'")
    peers = any("ahead_of_peer" in told for told in tree["scores"].values())
    table(
        "rules: slowdown against the fastest kernel of each shape"
        + (", measured a second time" if tree["measured_on"] else ", under the model"),
        ["rule", "#mean", "#worst", *(["#ahead of cuBLASLt"] if peers else []), ""],
        [
            [
                rule + (" (chosen)" if rule == tree["rule"] else ""),
                f"{told['mean']:.4f}",
                f"{told['worst']:.3f}",
                *([f"{told['ahead_of_peer']:.3f}"] if "ahead_of_peer" in told else []),
                _rule_text(rule, told),
            ]
            for rule, told in tree["scores"].items()
        ],
    )
    if tree["why_not_measured"]:
        say(f"chosen by the model alone, nothing was measured: {tree['why_not_measured']}")


def _rule_text(rule: str, told: Mapping[str, float]) -> str:
    if rule in dispatching.RULES:
        return dispatching.RULES[rule]
    cost = told.get("first_call_seconds")
    return "times all at a shape's first call" + (f": {time_text(cost)}" if cost else "")
