"""The event graph: it decides whether a program may deadlock or race, whatever its parameters are.

A program unfolds into instances of statements.  Each instance of each thread has an *issue* node
and, where it completes later, a *done* node (a wait: *pass*).  Edges are what hardware promises:

    program order     from an instance (a wait: its pass) to the issue of its thread's next one
    landing           from the issue of a cp.async to its done
    wait_group N      from the done of each copy but those of the newest N groups to the pass
    bar.sync          from the issue of each thread's j-th one to the pass of every thread's j-th

Any two threads may share a cell of shared memory, except that one write statement gives each of
its threads cells of their own (what its map says is checked).  A program is legal if

    D  the graph is acyclic, every thread has the same barriers, and none leaves before a barrier;
    R  of two accesses to one slot, not both reads, by different threads or one of them a copy, the
       first's done comes before the second's issue; and the latest write of a slot before a
       read of index x is of x;
    X  no copy is still landing when its thread ends.

``verdict`` decides this by one pass (``tinygpu.hazards``) at each point of a box of trip counts;
``tinygpu.window`` shows that the box decides every trip count, or says why it may not.  Programs
with mbarriers, several copies of a role or a cluster have a graph and conditions of their own:
``tinygpu.conditions`` and ``tinygpu.tile_window``.

>>> from tinygpu.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.operation import matmul
>>> program = Simt().program(matmul("f32"), Chosen(LADDER["multi-stage"]))
>>> print(verdict(program))
legal for every trips (trips <= 6 decide)
>>> graph(program, {"trips": 1}).number_of_nodes() > 20
True

Source: ``docs/model-concurrency.md``; PTX ISA, sections "Memory Consistency Model" and
"Asynchronous Operations".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from tinygpu.assumptions import Unmet, of_program, of_window
from tinygpu.conditions import hazards
from tinygpu.errors import ProgramError
from tinygpu.extraction import skeleton_of
from tinygpu.hazards import Finding, scan
from tinygpu.program import Commit, Program, Sync, WaitGroup
from tinygpu.protocol import Protocol, names_in
from tinygpu.protocol_extraction import is_asynchronous, protocol_of
from tinygpu.protocol_parts import parts
from tinygpu.skeleton import Act, Skeleton, free_names, unnamed
from tinygpu.tile_window import tile_window
from tinygpu.unfolding import Instance, instances
from tinygpu.window import Window, window
from tinygpu.witness import Hazard

if TYPE_CHECKING:
    import networkx as nx

__all__ = [
    "Event",
    "Finding",
    "Hazard",
    "Outcome",
    "Verdict",
    "concurrency_key",
    "graph",
    "is_legal",
    "skeleton_of",
    "unfold",
    "verdict",
    "verdict_of",
    "verdict_of_protocol",
]

_MANY_FINDINGS = 32

Outcome = Literal["legal", "illegal", "unproved"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of a program for all parameters, and why.

    ``unmet``: what the proof assumes and the program does not satisfy.  With a finding it is
    *illegal*; without one *legal*, if nothing is unmet, and else *unproved*: nothing was found in
    the window, and nothing is known beyond it.
    """

    findings: tuple[Finding | Hazard, ...]
    skeleton: Skeleton | Protocol
    window: Window
    unmet: tuple[Unmet, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """The three outcomes."""
        if self.findings:
            return "illegal"
        return "unproved" if self.unmet else "legal"

    @property
    def legal(self) -> bool:
        """Whether it is legal for all parameters, and proved to be."""
        return self.outcome == "legal"

    @property
    def reason(self) -> str:
        """Why it is not legal: the first finding, or what is unmet; "" if it is."""
        return str((*self.findings, *self.unmet, "")[0])

    def __str__(self) -> str:
        match self.outcome:
            case "illegal":
                return "\n".join(["illegal", *(f"  {f}" for f in self.findings)])
            case "unproved":
                return f"unproved: {self.reason} (checked up to {self.window.limits})"
            case "legal":
                names = ", ".join(name for name, _ in self.window.most)
                return f"legal for every {names} ({self.window})" if names else "legal"


def verdict(program: Program) -> Verdict:
    """Decide whether a program may deadlock, race or read what is not meant, for any trip counts.

    The program's numbers are ints.  What depends on the skeleton only is computed once for each.
    """
    if is_asynchronous(program):
        found = verdict_of_protocol(protocol_of(program))
    else:
        found = verdict_of(skeleton_of(program))
    more = of_program(program)
    return replace(found, unmet=(*more, *found.unmet)) if more else found


def is_legal(program: Program) -> bool:
    """Return whether its verdict is legal; skeletons that differ in names only are judged once.

    What is unproved is not legal.
    """
    key = concurrency_key(program)
    found = verdict_of(unnamed(key)) if isinstance(key, Skeleton) else verdict_of_protocol(key)
    return found.legal and not of_program(program)


def concurrency_key(program: Program) -> Skeleton | Protocol:
    """Return a hashable value: programs that have it in common have the same verdict.

    Not of it, but of the program, is what ``tinygpu.assumptions.of_program`` says.
    """
    return protocol_of(program) if is_asynchronous(program) else skeleton_of(program)


@lru_cache(8192)
def verdict_of(skeleton: Skeleton) -> Verdict:
    """Decide it for a skeleton; see ``verdict``."""
    box = window(skeleton)
    found: dict[tuple[str, str, str], Finding] = {}
    for point in box.points():
        for finding in scan(skeleton, point):
            key = (finding.kind, str(finding.first.node), str(finding.second.node))
            found.setdefault(key, finding)
        if len(found) >= _MANY_FINDINGS:
            break
    return Verdict(tuple(found.values()), skeleton, box, of_window(box))


@lru_cache(8192)
def verdict_of_protocol(protocol: Protocol) -> Verdict:
    """Decide it for the protocol of an asynchronous program; see ``verdict``.

    Its parts are asked first: they are small, and many protocols have them in common.
    """
    box, points = tile_window(protocol)
    if strange := _strange(protocol):
        text = f"index or guard names {strange[0]}, which neither a loop nor the launch counts"
        return Verdict((), protocol, box, (Unmet("indices", text),))
    pieces = parts(protocol)
    if pieces != (protocol,) and all(map(_is_legal, pieces)):
        return Verdict((), protocol, replace(box, doubt="", law=""))
    found: dict[tuple[str, str, str], Hazard] = {}
    for point in points:
        for hazard in hazards(protocol, point):
            key = (hazard.kind, str(hazard.first[1].node), str(hazard.second[1].node))
            found.setdefault(key, hazard)
        if found:
            break
    return Verdict(tuple(found.values()), protocol, box, of_window(box))


def _strange(protocol: Protocol) -> list[str]:
    """Return the names in a protocol that are no parameter, rank or copy: the grid's variables."""
    known = {name for name, _ in (*protocol.parameters, *protocol.cluster)}
    return sorted(
        name for crew in protocol.crews for name in names_in(crew.body) - known - {crew.copy}
    )


@lru_cache(8192)
def _is_legal(part: Protocol) -> bool:
    """Say whether a protocol is legal for all numbers of tiles and trips.

    What is legal with some tiles is so with fewer, so the most of them are enough.
    """
    box, points = tile_window(part, observed=True)
    most = {tuple(p[n] for n, _ in part.parameters): p for p in points}  # fewest tiles first
    return not box.doubt and not any(hazards(part, point, observed=True) for point in most.values())


def unfold(program: Program, trips: Mapping[str, int]) -> tuple[tuple[Instance, ...], ...]:
    """Return each role's instances in program order, ``trips`` giving the parameters' values.

    Raises ProgramError if a parameter has no value.
    """
    roles = skeleton_of(program).roles
    for name in sorted({n for _, body in roles for n in free_names(body)} - set(trips)):
        raise ProgramError(
            f"program {program.name}: unfolding needs a value of {name}, got "
            f"{', '.join(trips) or 'none'}; add it to trips"
        )
    return tuple(tuple(instances(body, i, trips)) for i, (_, body) in enumerate(roles))


@dataclass(frozen=True, slots=True)
class Event:
    """A node: an instance (the position-th of its role) of a thread (0 or 1), at issue or done."""

    role: int
    thread: int
    position: int
    done: bool = False


def graph(program: Program, trips: Mapping[str, int]) -> nx.DiGraph:
    """Return the event graph of two threads of each role.

    Nodes are ``Event`` with the attribute ``instance``; edges have the attribute ``kind``: "order",
    "landing", "wait_group" or "bar.sync".  Raises ProgramError if a parameter has no value.
    """
    import networkx as nx

    found = nx.DiGraph(name=program.name)
    syncs: dict[tuple[int, int], list[tuple[Event, Event]]] = {}
    for role, sequence in enumerate(unfold(program, trips)):
        for thread in (0, 1):
            _thread(found, sequence, (role, thread), syncs)
    for members in syncs.values():
        for issue, _ in members:
            for _, passed in members:
                found.add_edge(issue, passed, kind="bar.sync")
    return found


def _thread(
    found: nx.DiGraph,
    sequence: tuple[Instance, ...],
    thread: tuple[int, int],
    syncs: dict[tuple[int, int], list[tuple[Event, Event]]],
) -> None:
    """Add one thread's nodes and its own edges; put its barriers, by id and count, into syncs."""
    last: Event | None = None
    landing: list[tuple[int, Event]] = []
    commits = 0
    passed: dict[int, int] = {}
    for position, instance in enumerate(sequence):
        issue, done = Event(*thread, position), Event(*thread, position, True)
        found.add_node(issue, instance=instance)
        if last is not None:
            found.add_edge(last, issue, kind="order")
        last = issue
        match instance.node:
            case Act(_, _, True):
                found.add_node(done, instance=instance)
                found.add_edge(issue, done, kind="landing")
                landing.append((commits, done))
            case Commit():
                commits += 1
            case WaitGroup(pending):
                found.add_node(done, instance=instance)
                found.add_edge(issue, done, kind="order")
                for group, copy in landing:
                    if group < commits - pending:
                        found.add_edge(copy, done, kind="wait_group")
                last = done
            case Sync(barrier):
                found.add_node(done, instance=instance)
                count = passed[barrier] = passed.get(barrier, 0) + 1
                syncs.setdefault((barrier, count), []).append((issue, done))
                last = done
            case _:
                pass
