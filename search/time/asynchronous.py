"""Work of asynchronous programs: what each statement of a term with barriers asks of an SM.

``agents(program, device, sizes)`` walks the term once.  A role becomes an *agent*, in the one form
that the time model follows: a loop over tiles, in it one loop over the steps of k,

    for each tile:  before;  for each step:  body;  after

of *events*.  An event occupies units for some cycles, each a number or an array over a space:

    serial   its own warps, for the whole event: issue, conversions, synchronisation
    tensor   the tensor cores: a wgmma takes the longer of its arithmetic and its reads
    smem     the shared memory's port
    tma      the copy engine
    fill     the way from L2 into this SM: of every byte that lands here, multicast or not

A load also says how many bytes L2 sends for it: those to further receivers count in part.  Rows of
a box outside the array come from nowhere, but TMA writes their zeros slowly, one by one, unless the
load leaves them out.

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.hopper import STARTS, Hopper
>>> from tinygpu.term.operation import matmul
>>> term = Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS["cluster"]))
>>> producer, consumer = agents(term, load_device("h200"), {"m": 4096, "n": 4096, "k": 4096})
>>> [event.kind for event in producer.body], int(consumer.body[1].cycles["tensor"])
(['wait', 'arrive', 'load', 'load'], 512)

Source: ``docs/model.md``, section "Time"; rates of wgmma: Luo et al., arXiv 2402.13499.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from tinygpu.devices.device import Device
from tinygpu.errors import ProgramError
from tinygpu.search.time.fitted_pipeline import PIPELINE
from tinygpu.search.time.lines import sectors_of_warp, share_inside
from tinygpu.search.time.shared import home_cycles, smem_width, touches_smem
from tinygpu.search.time.tcgen05 import copy_cycles, product_cycles, row_sectors, transfer_cycles
from tinygpu.term.access_map import Affine
from tinygpu.term.program import (
    Arrive,
    Commit,
    Do,
    Elect,
    Exit,
    Fence,
    For,
    ForTile,
    Program,
    Role,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    When,
    walk,
)
from tinygpu.term.tensor_memory import uses_tensor_memory

__all__ = ["Event", "Guard", "Node", "TimedAgent", "TimedLoop", "agents", "mapped"]

Numbers = Any
Kind = Literal["wait", "arrive", "load", "product", "commit", "group", "store", "work"]
_WARP = 32
_NOWHERE = Affine()


@dataclass(frozen=True, slots=True)
class Event:
    """One statement (or an unrolled loop of it): which units it occupies, what it waits for."""

    kind: Kind
    cycles: Mapping[str, Numbers]
    barrier: str = ""
    index: Affine = _NOWHERE
    group: str = ""
    pending: Numbers = 0
    latency: Numbers = 0
    fetched_bytes: Numbers = 0
    instruction: str = ""


@dataclass(frozen=True, slots=True)
class TimedLoop:
    """An unrolled loop.  ``signals``: there are barriers in it, so each iteration counts."""

    var: str
    trips: Numbers
    body: tuple[Node, ...]
    signals: bool


@dataclass(frozen=True, slots=True)
class Guard:
    """Arrivals that happen where ``index < bound`` (a number, or a parameter's name)."""

    index: Affine
    bound: Numbers
    body: tuple[Node, ...]


Node = Event | TimedLoop | Guard


@dataclass(frozen=True, slots=True)
class TimedAgent:
    """A role: the statements around and in its loop over steps, and which tiles are its own.

    ``together`` copies do the same at once, on a part of a tile each; with ``step`` above 1 the
    copies take tiles in turn.
    """

    name: str
    tile: str
    turn: str
    copy: str
    step_var: str
    steps: str
    together: Numbers
    step: Numbers
    before: tuple[Node, ...]
    body: tuple[Node, ...]
    after: tuple[Node, ...]


def agents(program: Program, device: Device, sizes: Mapping[str, int]) -> tuple[TimedAgent, ...]:
    """Return the agents of a program, those that load first: a step's loads come before its use.

    Raises ProgramError for a role of another form.
    """
    found = [_Accountant(program, device, sizes, role).agent() for role in program.roles]
    return tuple(sorted(found, key=lambda agent: (not _loads(agent.body), not agent.body)))


def mapped(tree: tuple[Node, ...], of: Callable[[Numbers], Numbers]) -> tuple[Node, ...]:
    """Apply a function to every number, in one order for all trees of the same form."""
    return tuple(_mapped(node, of) for node in tree)


def _mapped(node: Node, of: Callable[[Numbers], Numbers]) -> Node:
    match node:
        case Event():
            return replace(
                node,
                cycles={unit: of(cycles) for unit, cycles in node.cycles.items()},
                index=_affine(node.index, of),
                pending=of(node.pending),
                latency=of(node.latency),
                fetched_bytes=of(node.fetched_bytes),
            )
        case TimedLoop():
            return replace(node, trips=of(node.trips), body=mapped(node.body, of))
        case Guard():
            bound = node.bound if isinstance(node.bound, str) else of(node.bound)
            return replace(
                node, index=_affine(node.index, of), bound=bound, body=mapped(node.body, of)
            )


def _affine(index: Affine, of: Callable[[Numbers], Numbers]) -> Affine:
    terms = tuple((v, c if isinstance(c, str) else of(c)) for v, c in index.terms)
    return Affine(of(index.constant), terms)


class _Accountant:
    """Walks one role."""

    def __init__(
        self, program: Program, device: Device, sizes: Mapping[str, int], role: Role
    ) -> None:
        self.program, self.device, self.role = program, device, role
        self.values = program.parameter_values(sizes)
        self.extents = dict(program.cluster)
        self.together: Numbers = role.copies

    def agent(self) -> TimedAgent:
        """Find the loop over tiles and the loop over steps."""
        tiles = _only(_opened(self.role.body), ForTile, self.role.name)
        inside = _opened(tiles.body)
        in_turn = str(tiles.step) != "1"
        if in_turn:
            self.together = 1
        looping = (s for s, _ in walk(self.program) if isinstance(s, For))
        named = next((s.trips for s in looping if isinstance(s.trips, str)), "")
        if not any(isinstance(s, For) and not s.unrolled for s in inside):
            return TimedAgent(  # it rests while others take steps
                self.role.name, tiles.tile, tiles.turn, self.role.copy, "", named,
                self.together, tiles.step if in_turn else 1, (), (), self.tree(inside),
            )  # fmt: skip
        steps = _only(tuple(s for s in inside if not _unrolled(s)), For, self.role.name)
        if not isinstance(steps.trips, str):
            raise ProgramError(
                f"role {self.role.name}: its loop {steps.var} has {steps.trips} steps; the time "
                "model follows a loop to a parameter, as trips is"
            )
        at = inside.index(steps)
        return TimedAgent(
            self.role.name, tiles.tile, tiles.turn, self.role.copy, steps.var, steps.trips,
            self.together, tiles.step if in_turn else 1,
            self.tree(inside[:at]), self.tree(_opened(steps.body), rolled=True),
            self.tree(inside[at + 1 :]),
        )  # fmt: skip

    def tree(self, body: tuple[Statement, ...], *, rolled: bool = False) -> tuple[Node, ...]:
        """Return the events of statements; a step's products become one event."""
        found: list[Node] = []
        for statement in _opened(body):
            match statement:
                case For(name, trips, inner):
                    count = self.values[trips] if isinstance(trips, str) else trips
                    count = count - statement.start
                    nodes = self.tree(inner, rolled=rolled)
                    told = tuple(n for n in nodes if isinstance(n, Guard))
                    if told and len(told) < len(nodes):  # what some iteration tells, after all
                        done = tuple(n for n in nodes if not isinstance(n, Guard))
                        found.append(TimedLoop(name, count, done, False))
                        found += (e for g in told for e in g.body)
                    elif rolled and len(nodes) == 1 and isinstance(nodes[0], Event):
                        found.append(_times(nodes[0], count))
                    else:
                        found.append(TimedLoop(name, count, nodes, _signals(nodes)))
                case When(Affine(_, ((rank, _),)), _, inner) if rank in self.extents:
                    found += self.tree(inner)  # what takes some CTAs of the cluster their time
                case When(index, bound, inner):
                    nodes = self.tree(inner)
                    if not all(isinstance(n, Event) and n.kind == "arrive" for n in nodes):
                        raise ProgramError(
                            f"role {self.role.name}: {statement.index} guards more than arrivals, "
                            "which the time model does not follow"
                        )
                    found.append(Guard(index, bound, nodes))
                case _:
                    found += self.event(statement)
        return tuple(found)

    def event(self, statement: Statement) -> list[Node]:
        """Return the event of one statement; a fence before products costs nothing by itself."""
        device = self.device
        match statement:
            case Do():
                return [self.work(statement)]
            case Wait(barrier, index):
                return [
                    Event("wait", {"serial": device.mbarrier_latency_cycles}, barrier.name, index)
                ]
            case Arrive(barrier, index, after="tcgen05"):
                cycles = {"serial": PIPELINE["arrive"]}
                return [Event("arrive", cycles, barrier.name, index, group="tcgen05")]
            case Arrive(barrier, index, _, to):
                told = self.extents if to == "cluster" else to.split()
                size: Numbers = math.prod(self.extents.get(axis, 1) for axis in told)
                far = device.cluster_latency_cycles * (size > 1)
                return [
                    Event(
                        "arrive", {"serial": PIPELINE["arrive"]}, barrier.name, index, latency=far
                    )
                ]
            case WaitGroup(pending, group, read):
                name = f"{group}.read" if read else group
                return [Event("group", {}, group=name, pending=pending)]
            case Fence("proxy.async"):
                return [Event("work", {"serial": PIPELINE["proxy_fence"]})]
            case Sync(_, scope):
                latency = device.barrier_latency_cycles
                if scope == "cluster":
                    latency = latency + device.cluster_latency_cycles
                return [Event("work", {"serial": latency})]
            case Exit():
                raise ProgramError(f"role {self.role.name}: {statement}: no exit among barriers")
            case Fence():
                return []
            case Commit(group):
                return [Event("commit", {}, group=group)]
            case _:
                raise ProgramError(
                    f"role {self.role.name}: a loop over tiles in another; the time model "
                    "follows one"
                )

    def work(self, do: Do) -> Event:
        """Return the event of an instruction: one rule a unit."""
        device = self.device
        smem = device.smem_bytes_per_cycle_per_sm * PIPELINE["smem_share"]
        count: Numbers = math.prod(do.values)
        width, name, end = do.write.buffer.type.bytes, do.instruction.name, PIPELINE["product_end"]
        match do.instruction.unit:
            case "tensor" if name == "tcgen05.mma":
                cycles = product_cycles(do, device, smem)
                return Event("product", cycles, latency=end, instruction=name)
            case "tmem" if name == "tcgen05.cp":
                return Event("product", copy_cycles(do, smem), instruction=name)
            case "tmem":
                return Event("work", {"serial": transfer_cycles(count, device)})
            case "tensor":
                k, inner, outer, rows = do.values
                width = smem_width(do)
                read = (rows + inner * outer) * k * width / smem
                busy = count * width / device.tensor_flop_per_cycle_per_sm  # that of 2 B inputs
                cycles = {"tensor": np.maximum(busy, read), "smem": read}
                return Event("product", cycles, latency=end, instruction=name)
            case "tma" if do.write.buffer.level == "smem":
                barrier, index = do.signal or (None, Affine())
                if barrier is None:
                    raise ProgramError(f"role {self.role.name}: {do} signals no barrier")
                receivers = self.extents.get(do.multicast, 1)
                landed = count * width * receivers
                inside = share_inside(do, self.program, self.values)
                sent = count * width * inside * (1 + PIPELINE["multicast"] * (receivers - 1))
                line = PIPELINE["tma_line"] + PIPELINE["tma_outside"] * (1 - inside)
                if do.trimmed:
                    line = PIPELINE["tma_line"] * inside
                cycles = {
                    "serial": PIPELINE["tma_issue"],
                    "tma": line * count / do.values[0],
                    "smem": PIPELINE["landing"] * landed / smem,
                    "fill": inside * landed / device.fill_bytes_per_cycle_per_sm,
                }
                return Event("load", cycles, barrier.name, index, fetched_bytes=sent)
            case "tma":
                cycles = {
                    "serial": PIPELINE["tma_issue"],
                    "smem": count * width / smem,
                    "tma": PIPELINE["tma_line"] * count / do.values[0],
                }
                return Event("store", cycles, latency=device.smem_latency_cycles)
            case "cvt":
                packed = 2 if width == 2 else 1
                return self.plain({"cvt": count / (packed * device.cvt_16_per_cycle_per_sm)})
            case "lsu" if do.write.buffer.home:
                way = home_cycles(do, count, self.extents)
                return Event("work", {"serial": way * self.together, "smem": count * width / smem})
            case "lsu" if touches_smem(do):
                return self.plain({"smem": count * width / smem})
            case "lsu" if any(a.buffer.fragment == "row" for a in do.accesses):
                sectors = row_sectors(do, count, device)
                return Event("work", {"serial": PIPELINE["direct_store"] * sectors * self.together})
            case "lsu":
                stored = (
                    PIPELINE["direct_store"]
                    * sectors_of_warp(do, self.values, device.sector_bytes)
                    * count
                    / (_WARP * do.vector)
                )
                return Event("work", {"serial": stored * self.together})
            case _:
                return self.plain({"issue": count / (_WARP * device.warp_schedulers_per_sm)})

    def plain(self, cycles: Mapping[str, Numbers]) -> Event:
        """Return work of a copy's warps: its copies' shares of a unit come one after another."""
        total: Numbers = 0.0
        for each in cycles.values():
            total = total + each
        times = "tmem_epilogue" if uses_tensor_memory(self.program) else "epilogue"
        serial = PIPELINE[times] * total * self.together
        return Event("work", {"serial": serial, **cycles})


def _opened(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """Return statements with those of elected threads in their place."""
    found: list[Statement] = []
    for statement in body:
        inside = isinstance(statement, When) and any(isinstance(s, ForTile) for s in statement.body)
        if isinstance(statement, Elect) or (isinstance(statement, When) and inside):
            found += _opened(statement.body)
        else:
            found.append(statement)
    return tuple(found)


def _unrolled(statement: Statement) -> bool:
    return isinstance(statement, For) and statement.unrolled


def _only(body: tuple[Statement, ...], kind: type[Any], name: str) -> Any:
    found = [statement for statement in body if isinstance(statement, kind)]
    if len(found) != 1:
        raise ProgramError(
            f"role {name}: {len(found)} loops of kind {kind.__name__}; the time model follows one "
            "loop over tiles and in it one over steps"
        )
    return found[0]


def _loads(nodes: tuple[Node, ...]) -> bool:
    return any(n.kind == "load" if isinstance(n, Event) else _loads(n.body) for n in nodes)


def _signals(nodes: tuple[Node, ...]) -> bool:
    return any(
        _signals(n.body) if isinstance(n, TimedLoop) else isinstance(n, Guard) or bool(n.barrier)
        for n in nodes
    )


def _times(event: Event, count: Numbers) -> Event:
    cycles = {unit: c * count for unit, c in event.cycles.items()}
    return replace(event, cycles=cycles)
