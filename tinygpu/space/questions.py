"""Questions about a space: is there a schedule with a wish, and does a claim hold of all of them.

``ask`` answers with a legal schedule, or with the laws, fixed decisions and wishes that exclude
each other: without any one of them there would be a schedule.  ``prove`` asks for a schedule that
denies a claim; if nothing legal does, the claim holds of every legal schedule.  Where z3 gives up
the answer is "unknown".  ``tinygpu.space.wishes`` is the language, ``tinygpu.space.solve`` how it
is decided.

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.machines import MACHINES
>>> from tinygpu.term.operation import Problem, matmul
>>> problem = Problem.of(matmul("bf16"), m=4096, n=4096, k=4096)
>>> fixed = {"cluster_k": 1, "swap": 0, "epilogue": "tma", "consume": "cooperative"}
>>> space = Space(MACHINES["hopper"], problem, load_device("h200"), fixed=fixed)
>>> found = ask(space, "stages >= 5 and tile_m * tile_n == 128 * 128")
>>> found.outcome, found.values["stages"] >= 5
('found', True)
>>> excluded = ask(space, "stages >= 5 and tile_n == 256 and tile_k == 128 and m > 0")
>>> [f"{reason.kind} {reason.name}" for reason in excluded.reasons]
['wish stages >= 5', 'wish tile_n == 256', 'wish tile_k == 128', 'law smem_per_cta']
>>> prove(space, "smem_bytes <= 232448").laws
('smem_per_cta',)

Source: M. Liffiton, K. Sakallah, "Algorithms for Computing Minimal Unsatisfiable Subsets of
Constraints", 2008.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from tinygpu.document import Json
from tinygpu.errors import IllegalScheduleError, MachineError, WishError, require_kind
from tinygpu.legality.laws import LAWS, check_schedule, named
from tinygpu.legality.reach import Case
from tinygpu.space.quantities import Named, named_values
from tinygpu.space.solve import RESOURCES, Member, Solver
from tinygpu.space.space import Space
from tinygpu.space.wishes import Wish, denied, wishes
from tinygpu.term.schedule import Schedule

__all__ = ["Answer", "Reason", "ask", "prove", "require", "why_empty"]


@dataclass(frozen=True, slots=True)
class Reason:
    """A fixed decision, a wish or a law that excludes schedules, in words.

    ``example`` is what a law says of a schedule that keeps all else; ``mend`` is the way out.
    """

    kind: Literal["fix", "wish", "law"]
    name: str
    text: str
    example: str = ""
    mend: str = ""

    def __str__(self) -> str:
        text = f"{self.name}: {self.text}" if self.kind == "law" else self.text
        lines = [f"  {self.kind:5} {text}"]
        lines += [f"        as in: {self.example}"] * bool(self.example)
        lines += [f"        way out: {self.mend}"] * bool(self.mend)
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Answer:
    """What ``ask`` (found, excluded) or ``prove`` (proved, refuted) came to, or "unknown".

    ``schedule`` is the one that was found, or the counterexample; ``values`` are those of the names
    in the question.  ``reasons`` are what excludes everything, or what a proof needs; none of them
    can be left out where ``minimal`` (z3 may give up on that).  ``count``: the schedules of which a
    claim is proved, legal by every law but those ``not_asked``, which ``check_schedule`` asks for.
    """

    outcome: Literal["found", "excluded", "proved", "refuted", "unknown"]
    space: str
    question: str
    schedule: Schedule | None = None
    values: Mapping[str, Named] = field(default_factory=dict)
    reasons: tuple[Reason, ...] = ()
    minimal: bool = False
    count: int = 0
    not_asked: tuple[str, ...] = ()
    why_unknown: str = ""

    @property
    def laws(self) -> tuple[str, ...]:
        """The laws among the reasons."""
        return tuple(r.name for r in self.reasons if r.kind == "law")

    @property
    def sentence(self) -> str:
        """Say in one sentence why nothing was found."""
        if self.outcome == "unknown":
            return f"no legal schedule of {self.space} was found: {self.why_unknown}"
        given = ", ".join(r.text for r in self.reasons if r.kind != "law")
        left = f"keeps {' and '.join(self.laws)}" if self.laws else "is left"
        return f"{f'with {given} ' if given else ''}no schedule of {self.space} {left}"

    def tree(self) -> dict[str, Json]:
        """Return it as a tree for JSON."""
        return {**asdict(self), "schedule": self.schedule and dict(self.schedule.decisions)}

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        match self.outcome:
            case "found":
                yield f"found: a legal schedule of {self.space}"
            case "excluded":
                more = "each is needed" if self.minimal else "fewer may be enough"
                yield f"excluded: no such schedule of {self.space}; these exclude all, {more}"
                yield from map(str, self.reasons)
            case "proved":
                whole = f"all {self.count:,} legal schedules of {self.space}"
                yield f"proved: {self.question} holds for {whole}"
                word = "needed" if self.minimal else "enough"
                yield f"  {word}: {', '.join(self.laws) or 'no law, the values of decisions do'}"
                if self.not_asked:
                    laws = ", ".join(self.not_asked)
                    yield f"  counted by every law but {laws}, which is asked of one schedule"
            case "refuted":
                yield f"refuted: {self.question} does not hold of this schedule of {self.space}"
            case "unknown":
                yield f"unknown: {self.why_unknown}; fix more decisions, or ask for less"
        if self.schedule is not None:
            yield f"  {' '.join(f'{n}={v}' for n, v in self.schedule.decisions)}"
            chosen = dict(self.schedule.decisions)
            yield from (f"  {n} = {value}" for n, value in self.values.items() if n not in chosen)


def ask(space: Space, wish: str = "", *, resources: int = RESOURCES) -> Answer:
    """Look for a legal schedule with a wish; what its top-level ``and`` joins are wishes each.

    ``resources`` limits z3's steps for one structural choice.  Raises WishError for what is not of
    the language.
    """
    require_kind("ask: space", space, Space, MachineError)
    require_kind("wish", wish, str, WishError)
    return _asked(
        space, " ".join(wish.split()), wishes(wish, space.machine, space.problem), resources
    )


def prove(space: Space, claim: str, *, resources: int = RESOURCES) -> Answer:
    """Prove that a claim holds of every legal schedule, or find one that denies it.

    ``resources`` is as for ``ask``.  Raises WishError for what is not of the language,
    IllegalScheduleError if nothing is legal.
    """
    require_kind("prove: space", space, Space, MachineError)
    require_kind("claim", claim, str, WishError)
    against = denied(wishes(claim, space.machine, space.problem))
    found = _asked(space, " ".join(claim.split()), (against,), resources)
    if found.outcome == "excluded":
        require(space)
        reasons = tuple(reason for reason in found.reasons if reason.kind != "wish")
        return replace(
            found,
            outcome="proved",
            reasons=reasons,
            count=space.count(),
            not_asked=space.not_asked,
        )
    return replace(found, outcome="refuted") if found.outcome == "found" else found


def _asked(space: Space, question: str, wished: tuple[Wish, ...], resources: int) -> Answer:
    solver = Solver(space, wished, resources=resources)
    given: tuple[Member, ...] = ()
    found = solver.check(first=True)
    if found.outcome == "unknown" and space.fixed:
        given = tuple(Member("fix", name) for name in space.fixed)
        solver = Solver(space, wished, narrowed=True, resources=resources)
        found = solver.check(first=True)
    if found.schedule is not None:
        values = _values(space, found.schedule, wished)
        return Answer("found", str(space), question, found.schedule, values)
    if found.outcome == "unknown":
        return Answer("unknown", str(space), question, why_unknown=found.reason)
    found = solver.core(found)
    reasons = tuple(_reason(solver, member, found.core) for member in (*given, *found.core))
    minimal = found.minimal and not given
    return Answer("excluded", str(space), question, reasons=reasons, minimal=minimal)


def _values(space: Space, schedule: Schedule, wished: tuple[Wish, ...]) -> dict[str, Named]:
    """Return what the names in wishes stand for, of a schedule."""
    program = schedule.term(space.machine, space.problem.operation)
    case, *_ = Case.every(program, space.problem.sizes, space.device)
    names = dict.fromkeys(name for wish in wished for name in wish.names)
    return named_values(names, schedule.chosen(), space.problem.sizes, case)


def _reason(solver: Solver, member: Member, core: tuple[Member, ...]) -> Reason:
    """Say in words what a member of a core asks for."""
    space, (kind, name) = solver.space, member
    if kind == "fix":
        return Reason(kind, name, f"{name} = {' or '.join(map(str, space.values[name]))}")
    if kind == "wish":
        decisions = space.machine.decisions()
        (wish,) = (w for w in solver.wishes if w.text == name)
        known = [str(decisions[n]) for n in wish.names if n in decisions]
        return Reason(kind, name, name, mend="; ".join(known) if len(core) == 1 else "")
    law = solver.own.get(name) or solver.laws_of[name]
    mend = named(law.mend, dict.fromkeys(space.values))
    own = {Member("law", own) for own in solver.own}
    for others in ({*solver.members}, {*core} | own):  # or else it may break other laws too
        near = solver.check(others - {member}, first=True).schedule
        if near is not None:
            for broken in check_schedule(near, space.machine, space.problem, space.device):
                if broken.law == name:
                    if name in solver.own:  # its sentence may have values: arrays, over a space
                        return Reason(kind, name, broken.message, mend=mend)
                    return Reason(kind, name, law.sentence, broken.message, mend)
    return Reason(kind, name, law.sentence, mend=mend)


def why_empty(space: Space) -> str:
    """Say in a sentence which fixed decisions and laws, as few as may be, exclude everything.

    Returns "" if the space is not empty.
    """
    require_kind("why_empty: space", space, Space, MachineError)
    return "" if space.count() else ask(space).sentence


def require(space: Space) -> None:
    """Raise IllegalScheduleError, which says why and the way out, if the space is empty."""
    if space.count():
        return
    why, sentences = ask(space), {law.sentence for law in LAWS.values()}
    ways = []
    for reason in why.reasons:
        if reason.kind == "law":
            told = reason.example or ("" if reason.text in sentences else reason.text)
            ways.append(f"{told}: {reason.mend}" if told else reason.mend)
    raise IllegalScheduleError("; ".join([why.sentence, *ways]))
