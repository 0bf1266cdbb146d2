"""Conditions: what an event asks of what its agent knows, and what it changes.

    D  deadlock  nobody waits for ever; no order follows an ``Exit`` that divides threads; no two
                 groups of threads meet at one bar.sync
    B  balance   contributions to a barrier go to its open phase, and are not more than it counts
    E  early     a contribution to index x follows all to x - D (D stages)
    A  parity    a wait for x begins when x - D is over, and is passed before x + D is over
    R  race      who touches a slot knows what conflicts: a reader its writes, a writer its writes
                 and reads; who writes with others (threads of one statement, loads of one index)
                 what the first of them had to know.  A read of x finds x in its slot and nothing
                 else (*stale*: an older index; *unwritten*: none, or not all of it)
    F  proxy     who comes through the asynchronous proxy knows the fence of who wrote, and who
                 overwrites through it that of who read; products come after a wgmma.fence; tcgen05
                 instructions through tcgen05.fence on both sides
    X  exit      at its end an agent has waited for its copies, products and stores; somebody has
                 waited for each load; what goes to another CTA is known there

Of two events that are not ordered the one that is visited second does not know the first.  So one
visit in any order in which events may happen finds all that is wrong.

>>> from tinygpu.legality.concurrency.blocks import At, expanded, laid_out
>>> from tinygpu.legality.concurrency.erase import erase
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.hopper import STARTS, Hopper
>>> from tinygpu.term.operation import matmul
>>> plan = laid_out(erase(Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS["ring"]))))
>>> block = plan.sections[1].inner[0]
>>> at = At((("trips", 0),), (("trips", 1),), (("trips", "in"),))
>>> walk = Pass(plan, State(plan))
>>> walk.run([list(expanded(plan, block, a, at)) for a in range(len(plan.agents))])
>>> walk.stuck()
[]

Source: ``docs/model-concurrency.md``, section "Conditions"; PTX ISA 9, memory consistency model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NoReturn, assert_never

from tinygpu.legality.concurrency.blocks import TENSOR, THROUGH, LaidOut, Op, Spot, Touch
from tinygpu.legality.concurrency.facts import Agent, Flight, Group, Phases, Slot, State
from tinygpu.term.program import Arrive, Commit, Exit, Fence, WaitGroup

__all__ = ["Fault", "FaultError", "Pass"]


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong: the condition's word, and the two events."""

    kind: str
    message: str
    first: str
    second: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class FaultError(Exception):
    """A fault was found; the pass ends."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class Pass:
    """A pass over events, from a state."""

    def __init__(self, plan: LaidOut, state: State) -> None:
        self.plan, self.state = plan, state
        self.moved = state.symmetry.moved
        n = len(plan.agents)
        self.todo: list[list[Op]] = [[] for _ in range(n)]
        self.at = [0] * n
        self.begun = [-1] * n  # the position at which a wait has begun
        self.meet: dict[tuple[object, ...], set[int]] = {}
        self.at_named: dict[tuple[int, int], list[int]] = {}  # who waits: place and index
        self.flights: dict[tuple[int, int, int], list[Flight]] = {}
        self.teams: dict[tuple[int, int, int], set[int]] = {}
        for a in plan.agents:
            self.teams.setdefault((a.cta, a.role, a.copy), set()).add(a.number)

    def run(self, ops: Sequence[list[Op] | tuple[Op, ...]]) -> None:
        """Go on with each agent as far as it can, through a block's statements too."""
        for number, more in enumerate(ops):
            if self.at[number] == len(self.todo[number]):
                self.todo[number], self.at[number] = list(more), 0
                self.begun[number] = -1
            else:
                self.todo[number] += more
        active = [n for n, todo in enumerate(self.todo) if self.at[n] < len(todo)]
        going = True
        while going:
            going = False
            for number in active:
                todo = self.todo[number]
                while self.at[number] < len(todo):
                    if not self.step(number, todo[self.at[number]]):
                        break
                    self.at[number] += 1
                    going = True

    def stuck(self) -> list[int]:
        """Return the agents that have not done all that they were given."""
        return [n for n, todo in enumerate(self.todo) if self.at[n] < len(todo)]

    def fault(self, kind: str, number: int, op: Op, message: str, other: str = "") -> NoReturn:
        """End the pass."""
        second = f"{self.plan.agents[number]}: {op}"
        raise FaultError(Fault(kind, f"{second} {message}", other or second, second))

    def label(self, number: int, op: Op) -> str:
        """Name an event, where a run is replayed."""
        return f"{self.plan.agents[number]}: {op}" if self.state.names is not None else ""

    def who(self, facts: int) -> str:
        """Name one of some facts."""
        names = self.state.names
        if not names or not facts:
            return "what another thread did"
        low = (facts & -facts).bit_length() - 1
        return names.get(1 << (low - low % self.state.shifts), "what another thread did")

    def step(self, number: int, op: Op) -> bool:
        """Do one event; say whether the agent can go on."""
        agent = self.state.agents[number]
        match op.kind:
            case "plain" | "copy" | "store" | "load" | "product" | "mma" | "cp" | "take" | "put":
                self._do(number, agent, op)
            case "wait":
                return self._wait(number, agent, op)
            case "arrive":
                self._arrive(number, agent, op)
            case "sync":
                return self._sync(number, agent, op)
            case "commit":
                assert isinstance(op.node, Commit)
                self._commit(agent, op.node.group)
            case "waitgroup":
                return self._wait_group(number, agent, op)
            case "fence":
                self._fence(agent, op)
            case "exit":
                self._exit(number, agent, op)
            case _:
                raise AssertionError(op)
        return True

    # What agents tell one another.

    def _wait(self, number: int, agent: Agent, op: Op) -> bool:
        (told,) = op.told
        place = self.plan.places[told.place]
        if place.named:
            return self._wait_at_named(number, agent, op, told)
        stages, x = place.stages, told.offset
        p = self.state.barriers[told.place][x % stages]
        seen = agent.known
        if self.begun[number] != self.at[number]:
            self.begun[number] = self.at[number]
            if x == p.index:
                over = _over(seen, p.past, p.past_issued, p.past_late)
            elif x == p.index - stages:
                over = _over(seen, p.older, p.older_issued, p.older_late)
            else:
                over = x < p.index
            if not over:
                self.fault("parity", number, op, "may pass on the parity of an older phase; "
                           "wait for that phase before", p.last)  # fmt: skip
        if x > p.index - stages:
            return False
        if x < p.index - stages:
            self.fault("parity", number, op, f"comes when the phase after index {x} is over, "
                       "and may hang; let that wait for it", p.last)  # fmt: skip
        agent.known |= p.past_message
        p.past_passes |= self.state.epoch(number, op)
        p.unseen = False
        return True

    def _wait_at_named(self, number: int, agent: Agent, op: Op, told: Touch) -> bool:
        """Arrive at a named barrier, and wait until its phase is over; then know what all know."""
        if self.begun[number] == self.at[number]:
            return False
        self.begun[number] = self.at[number]
        waiting = self.at_named.setdefault((told.place, told.offset), [])
        waiting.append(number)
        self._tell_named(number, agent, op, told)
        return not waiting

    def _tell_named(self, number: int, agent: Agent, op: Op, told: Touch) -> None:
        """Arrive at a named barrier (B): each thread once in a phase."""
        if agent.left:
            self.fault("deadlock", number, op, "follows an exit of some threads")
        place, threads = self.plan.places[told.place], self.plan.agents[number].threads
        p = self.state.barriers[told.place][told.offset % place.stages]
        if told.offset == p.index and p.who >> number & 1:
            self.fault("balance", number, op, f"arrives at {place.ring}@{told.offset} again; "
                       "arrive once in a phase", p.last)  # fmt: skip
        if told.offset == p.index:
            p.who |= 1 << number
        self._give(number, op, told, self.state.tell(agent), 0, threads, 0, 0)

    def _arrive(self, number: int, agent: Agent, op: Op) -> None:
        assert isinstance(op.node, Arrive)
        if agent.left:
            self.fault("deadlock", number, op, "follows an exit of some threads")
        if op.node.barrier.named:
            self._tell_named(number, agent, op, op.told[0])
            return
        threads = self.plan.agents[number].threads
        bit = self.state.epoch(number, op)
        message = self.state.tell(agent)
        if op.node.after:
            message |= agent.multiplied
            agent.batch = 0
        for told in op.told:
            self._give(number, op, told, message, bit, threads, op.amount * threads, 0)
            cta = self._cta(told)
            if told.shift or cta != self.plan.agents[number].cta:
                self.state.sent[cta] |= self.moved(bit, told.shift)

    def _give(
        self, number: int, op: Op, told: Touch, message: int, bit: int, arrivals: int,
        expected: int, landed: int,
    ) -> None:  # fmt: skip
        """Contribute to a phase (B, E)."""
        place = self.plan.places[told.place]
        x = told.offset
        p = self.state.barriers[told.place][x % place.stages]
        which = f"{place.ring}@{x}"
        if x != p.index:
            more = x < p.index
            text = f"counts for {which}, which is over"
            if not more:
                text = f"counts for {which}, and {place.ring}@{p.index} has {p.arrivals} of "
                text += f"{place.arrivals} arrivals, {p.expected} B expected, {p.landed} landed"
            self.fault("balance", number, op, f"{text}; change an index or the count", p.last)
        seen = self.moved(self.state.agents[number].known, told.shift)
        if (p.past if p.past_loads or place.named else p.past_issued) & ~seen:
            self.fault("early", number, op, f"may count for the phase before {which}; "
                       "wait for that first", p.last)  # fmt: skip
        facts = self.moved(message, told.shift)
        p.arrivals += arrivals
        p.expected += expected
        p.landed += landed
        p.message |= facts
        p.issued |= self.moved(bit, told.shift) if not landed else 0
        p.late |= told.late
        p.loads |= bool(landed)
        p.last = self.label(number, op)
        if p.arrivals > place.arrivals:
            self.fault("balance", number, op, f"is arrival {p.arrivals} at {which}, which counts "
                       f"{place.arrivals}; change the arrivals or the count", p.last)  # fmt: skip
        if p.arrivals == place.arrivals and p.expected == p.landed:
            self._complete(number, op, place, p)

    def _complete(self, number: int, op: Op, place: Spot, p: Phases) -> None:
        """End a phase (A): all waits for the one before have to be passed by then."""
        if missed := p.past_passes & ~p.message:
            self.fault("parity", number, op, f"ends {place.ring}@{p.index} while a wait for the "
                       "phase before may not be passed, and hangs; let it wait for that",
                       self.who(missed))  # fmt: skip
        if p.unseen:
            self.fault("exit", number, op, f"ends {place.ring}@{p.index}; nobody has waited for "
                       "the loads of the phase before; wait for them")  # fmt: skip
        p.older, p.older_issued, p.older_late = p.past, p.past_issued, p.past_late
        p.past = self.state.fact(f"the end of {place.ring}@{p.index}")
        p.past_message, p.past_issued = p.message | p.past, p.issued
        p.past_late, p.past_loads, p.past_passes, p.unseen = p.late, p.loads, 0, p.loads
        if place.named:
            self._let_on(number, op, place, p)
        p.index += place.stages
        p.arrivals = p.expected = p.landed = p.message = p.issued = 0
        p.late = p.loads = False

    def _let_on(self, number: int, op: Op, place: Spot, p: Phases) -> None:
        """End a phase of a named barrier: whole copies have arrived, and who waits goes on."""
        for team in self.teams.values():
            here = {n for n in team if p.who >> n & 1}
            if here and here != team:
                self.fault("deadlock", number, op, f"ends {place.ring}@{p.index} with some threads "
                           "of a copy; let all of them arrive", p.last)  # fmt: skip
        waiting = self.at_named.get((place.number, p.index), [])
        for n in waiting:
            self.state.agents[n].known |= p.past_message
            if n != number:
                self.at[n] += 1
        waiting.clear()
        p.who = 0

    def _sync(self, number: int, agent: Agent, op: Op) -> bool:
        """D: wait until all members are there; then each knows what all know."""
        if self.begun[number] == self.at[number]:
            return False
        self.begun[number] = self.at[number]
        if agent.left:
            self.fault("deadlock", number, op, "waits for threads that have left; "
                       "let no thread leave before the last bar.sync")  # fmt: skip
        group = op.group
        here = self.meet.setdefault(group, set())
        here.add(number)
        if len(here) < self._members(group):
            return False
        everything = 0
        for n in here:
            mine = self.state.tell(self.state.agents[n])
            shifts = range(self.state.shifts) if group[0] == "cluster" else (0,)
            for shift in shifts:
                everything |= self.moved(mine, shift)
        for n in here:
            self.state.agents[n].known |= everything
            if n != number:
                self.at[n] += 1
        del self.meet[group]
        return True

    def _members(self, group: tuple[object, ...]) -> int:
        match group:
            case ("cta", cta, _):
                return sum(a.cta == cta for a in self.plan.agents)
            case ("role", cta, role, copy, _):
                return sum((a.cta, a.role, a.copy) == (cta, role, copy) for a in self.plan.agents)
            case _:
                return len(self.plan.agents)

    def _cta(self, touch: Touch) -> int:
        """Return the first CTA that a place belongs to."""
        return self.plan.places[touch.place].cta

    # What is under way.

    def _commit(self, agent: Agent, kind: str) -> None:
        """Begin a new group; those that every wait covers are one."""
        groups = agent.groups[kind]
        groups.append(agent.open[kind])
        groups[1].join(groups.pop(0))
        agent.open[kind] = Group()

    def _wait_group(self, number: int, agent: Agent, op: Op) -> bool:
        wait = op.node
        assert isinstance(wait, WaitGroup)
        if wait.pending < 0:
            self.fault("group", number, op, "leaves fewer than 0 groups pending; "
                       "raise the stages or the count")  # fmt: skip
        groups = agent.groups[wait.group]
        if not wait.how.committed:
            self._commit(agent, wait.group)
        covered = len(groups) - wait.pending
        if any(flight.missing for group in groups[:covered] for flight in group.flights):
            return False
        for group in groups[:covered]:
            own, told, later = group.masks()
            self.state.learn(agent, own)
            agent.known |= told
            if wait.how.fence:
                agent.untold |= later
            else:
                agent.unfenced |= later
        groups[:covered] = [Group() for _ in range(covered)]
        return True

    def _fence(self, agent: Agent, op: Op) -> None:
        assert isinstance(op.node, Fence)
        match op.node.how.orders:
            case "proxy":
                self.state.learn(agent, agent.unfenced)
                agent.unfenced = agent.epoch = agent.fenced = 0
            case "registers":
                agent.touched = False
            case "before":
                self.state.learn(agent, agent.untold)
                agent.untold = 0
            case "after":
                agent.after = agent.all
            case never:
                assert_never(never)

    def _exit(self, number: int, agent: Agent, op: Op) -> None:
        assert isinstance(op.node, Exit)
        self.finish(number)
        several = len(self.teams) > 1 or self.state.shifts > 1
        if op.node.threads[0] > 1 or several:
            agent.left = True

    def finish(self, number: int) -> None:
        """X: ask that an agent has nothing under way."""
        agent = self.state.agents[number]
        for group in agent.under_way():
            if group.due:
                what = self.who(group.due)
                raise FaultError(Fault(
                    "exit", f"{what} is not waited for before {self.plan.agents[number]} ends; "
                    "wait for it", what, str(self.plan.agents[number])))  # fmt: skip

    def end(self) -> None:
        """Judge the end of all agents."""
        state = self.state
        for number in range(len(state.agents)):
            self.finish(number)
        for place, stages in zip(self.plan.places, state.barriers, strict=True):
            for p in stages:
                if p.unseen or p.landed:
                    text = f"loads at {place.ring} are not waited for before the end; wait"
                    raise FaultError(Fault("exit", text, p.last, p.last))
        for cta, (sent, held) in enumerate(zip(state.sent, state.held, strict=True)):
            mine = [a.number for a in self.plan.agents if a.cta == cta]
            known = 0
            for n in mine:
                known |= state.agents[n].all
            if missed := sent & ~known:
                raise FaultError(Fault(
                    "exit", f"{self.who(missed)} may reach CTA {cta} when that has ended; end "
                    "with barrier.cluster", self.who(missed), f"CTA {cta}"))  # fmt: skip
            if missed := held & ~state.agents[mine[0]].known:
                raise FaultError(Fault(
                    "exit", f"{self.who(missed)} may not be done when CTA {cta} gives tensor "
                    "memory back; wait for it", self.who(missed), f"CTA {cta}"))  # fmt: skip

    def unissued(self) -> None:
        """D: ask that products are issued by all threads."""
        for flights in self.flights.values():
            for flight in flights:
                if flight.missing:
                    raise FaultError(Fault("deadlock", f"{self.who(flight.bit)} is not issued by "
                                           "all threads; take it out of one thread's",
                                           self.who(flight.bit), self.who(flight.bit)))  # fmt: skip

    def settle(self) -> None:
        """At the end of a block: forget whom statements were shared with, and what is known."""
        state = self.state
        for cta in range(len(state.sent)):
            if state.sent[cta] or state.held[cta]:
                mine = [a.number for a in self.plan.agents if a.cta == cta]
                for n in mine:
                    state.sent[cta] &= ~state.agents[n].all
                state.held[cta] &= ~state.agents[mine[0]].known
        for agent in state.agents:
            agent.epoch = agent.fenced = 0
        for ring in state.rings:
            for slot in ring:
                slot.token = None
                if not slot.loads:
                    slot.before = 0

    # What touches memory.

    def _do(self, number: int, agent: Agent, op: Op) -> None:
        state, kind = self.state, op.kind
        if agent.left and kind == "product":
            self.fault("deadlock", number, op, "follows an exit of some threads")
        fence = 0
        if kind == "plain":
            bit = state.epoch(number, op)
            shared = [p for r in op.reads if not (p := self.plan.places[r.place]).private]
            if any(p.crossed for p in (*shared, *(self.plan.places[w.place] for w in op.writes))):
                if not agent.fenced:
                    agent.fenced = state.fact(self.who(bit) if state.names else "")
                    agent.unfenced |= agent.fenced
                fence = agent.fenced
        elif kind == "product":
            bit = self._issue(number, agent, op)
        elif kind in ("mma", "cp"):
            if not agent.batch:
                agent.batch = state.fact(self.label(number, op))
                agent.multiplied |= agent.batch
            bit = agent.batch
        else:
            bit = state.fact(self.label(number, op))
            if kind in ("copy", "take", "put"):
                fence = state.fact(state.names[bit] if state.names is not None else "")
            if kind != "load":
                agent.open[op.joins].join(Group(bit, 0, fence, bit))
        held = kind in TENSOR
        for touch in op.reads:
            place = self.plan.places[touch.place]
            slot = state.rings[touch.place][touch.offset % place.stages]
            if place.private:
                self._register(number, agent, op, place, slot, touch, bit)
            else:
                self._read(number, agent, op, place, slot, touch, bit, fence)
        if kind == "load":
            self._load(number, agent, op)
            return
        for touch in op.writes:
            place = self.plan.places[touch.place]
            slot = state.rings[touch.place][touch.offset % place.stages]
            if place.private:
                self._register(number, agent, op, place, slot, touch, bit)
            else:
                self._write(number, agent, op, place, slot, touch, bit, fence)
        if held:
            for touch in (*op.reads, *op.writes):
                if not self.plan.places[touch.place].private:
                    state.held[self._cta(touch)] |= self.moved(bit, touch.shift)

    def _issue(self, number: int, agent: Agent, op: Op) -> int:
        """Bring an agent to a product, which is issued when all of its copy have come."""
        a = self.plan.agents[number]
        if agent.touched:
            self.fault("proxy", number, op, "needs a wgmma.fence after what else touched its "
                       "registers; put one before it")  # fmt: skip
        team = (a.cta, a.role, a.copy)
        flights = self.flights.setdefault(team, [])
        flight = next((f for f in flights if number in f.missing), None)
        if flight is None:
            flight = Flight(self.state.fact(self.label(number, op)), set(self.teams[team]))
            flights.append(flight)
        flight.missing.discard(number)
        flight.told |= self.state.tell(agent)
        if not flight.missing:
            flights.remove(flight)
        agent.open[op.joins].join(Group(due=flight.bit, flights=[flight]))
        return flight.bit

    def _seen(self, agent: Agent, op: Op, place: Spot) -> int:
        """Return what an agent knows of others when it touches shared memory."""
        if op.kind in TENSOR:
            return agent.after | agent.mine
        return agent.known

    def _conflict(
        self, number: int, op: Op, place: Spot, need: int, seen: int, touch: Touch, real: int
    ) -> None:
        """R, F: report what an event does not know."""
        missed = need & ~seen
        agent = self.state.agents[number]
        other = self.who(missed)
        where = f"{place.ring}@{touch.offset}"
        if not real & ~self.moved(agent.known, touch.shift) and op.kind in (*THROUGH, *TENSOR):
            self.fault("proxy", number, op, f"may not see what {other} did to {where}; put the "
                       "fence of its proxy on both sides", other)  # fmt: skip
        self.fault("race", number, op, f"and {other} are unordered at {where}; "
                   "bar.sync or a wait between them is missing", other)  # fmt: skip

    def _read(
        self, number: int, agent: Agent, op: Op, place: Spot, slot: Slot, touch: Touch, bit: int,
        fence: int,
    ) -> None:  # fmt: skip
        seen = self.moved(self._seen(agent, op, place), touch.shift)
        sums = op.kind == "mma" and any(touch.place == w.place for w in op.writes)
        if not sums:
            need = slot.crossing if op.kind in THROUGH else slot.writes
            if op.kind == "mma" and not place.product:
                need &= ~agent.multiplied  # what its tcgen05.cp wrote
            need |= slot.told & ~agent.untold
            if need & ~seen:
                self._conflict(number, op, place, need, seen, touch, slot.writes)
            slot.reads |= self.moved(bit, touch.shift)
            after = fence if op.kind == "plain" and fence else bit
            slot.behind |= self.moved(after, touch.shift)
            if op.kind in ("take", "put"):
                slot.tensor |= self.moved(fence, touch.shift)
        if not (sums and op.fresh):
            self._value(number, op, place, slot, touch)

    def _value(self, number: int, op: Op, place: Spot, slot: Slot, touch: Touch) -> None:
        """R: what a slot holds is what the read means."""
        if slot.held == (touch.offset,):
            return
        if slot.held == (None,):
            self.fault("unwritten", number, op, f"reads index {touch.offset} of {place.ring}, "
                       "which nothing wrote; write it before")  # fmt: skip
        if touch.offset in slot.held:
            self.fault("stale", number, op, f"reads index {touch.offset} of {place.ring}, which is "
                       "written in part; write it all", slot.last)  # fmt: skip
        self.fault("stale", number, op, f"wants index {touch.offset} of {place.ring}, and its slot "
                   f"holds another one; write it before, or raise the {place.stages} stages",
                   slot.last)  # fmt: skip

    def _write(
        self, number: int, agent: Agent, op: Op, place: Spot, slot: Slot, touch: Touch, bit: int,
        fence: int,
    ) -> None:  # fmt: skip
        me = self.plan.agents[number]
        through = op.kind in THROUGH
        seen = self.moved(self._seen(agent, op, place), touch.shift)
        if not touch.own and (agent.many or len(self.teams[me.cta, me.role, me.copy]) > 1):
            self.fault("race", number, op, f"by two threads writes one cell of {place.ring}; "
                       "give each its own")  # fmt: skip
        token = touch.token if op.kind != "load" else None
        together = slot.token == token and touch.offset in slot.held
        joined = _beside(slot, touch) if op.kind == "load" else together
        writes = slot.crossing if through else slot.writes
        need = slot.before if joined else writes
        if op.kind == "mma":  # products of one thread are done in order
            need &= ~self.moved(agent.multiplied, touch.shift)
        need |= slot.behind if through else slot.reads
        need |= (slot.tensor | slot.told) & ~agent.untold
        if need & ~seen:
            self._conflict(
                number,
                op,
                place,
                need,
                seen,
                touch,
                (slot.before if joined else slot.writes) | slot.reads,
            )
        bit, fence = self.moved(bit, touch.shift), self.moved(fence, touch.shift)
        crossing = fence if op.kind in ("plain", "copy") and fence else bit
        if joined:
            slot.writes |= bit
            slot.crossing |= crossing
        else:
            slot.before, slot.writes, slot.crossing = need, bit, crossing
            slot.reads = slot.behind = slot.tensor = 0
            slot.told = fence if op.kind == "put" else 0
        slot.token, slot.loads = token, op.kind == "load"
        slot.last = self.label(number, op)
        if place.crossed or place.level == "smem":
            cta = self._cta(touch)
            if touch.shift or cta != me.cta:
                self.state.sent[cta] |= bit if op.kind == "plain" else 0
        self._fill(place, slot, touch)

    def _load(self, number: int, agent: Agent, op: Op) -> None:
        """Issue a TMA load: in each CTA that gets it, a part lands and its bytes count."""
        state = self.state
        threads = self.plan.agents[number].threads
        message = state.tell(agent)
        for i, touch in enumerate(op.writes):
            place = self.plan.places[touch.place]
            slot = state.rings[touch.place][touch.offset % place.stages]
            bit = state.fact(self.label(number, op))
            self._write(number, agent, op, place, slot, touch, bit, 0)
            if op.told:
                told = op.told[i]
                self._give(number, op, told, message | bit, bit, 0, 0, op.amount * threads)

    def _register(
        self,
        number: int,
        agent: Agent,
        op: Op,
        place: Spot,
        slot: Slot,
        touch: Touch,
        bit: int,
    ) -> None:
        """R of registers: each thread's own, and what its copy's products read and add to."""
        write = any(touch is w for w in op.writes)
        sums = op.kind == "product" and any(touch.place == w.place for w in op.writes)
        flies = op.kind in ("product", "take", "put")
        if op.kind != "product" and (missed := slot.writes & ~agent.all):
            self.fault("race", number, op, f"touches {place.ring}@{touch.offset} while "
                       f"{self.who(missed)} is in flight; wait for that before",
                       self.who(missed))  # fmt: skip
        if op.kind != "product" and place.product:
            agent.touched = True
        if write:
            if op.kind == "product":
                if op.fresh:
                    self._fill(place, slot, touch)
            else:
                self._fill(place, slot, touch)
        elif not sums or (not op.fresh and touch.offset not in slot.held):
            self._value(number, op, place, slot, touch)
        if flies:
            slot.writes |= bit

    def _fill(self, place: Spot, slot: Slot, touch: Touch) -> None:
        """Note which indices a slot holds after a write.

        Parts of one statement, at all its turns, are of different cells.
        """
        x = touch.offset
        if touch.part == 1:
            slot.held, slot.pieces, slot.filling = (x,), (), x
            return
        assert touch.piece is not None
        if slot.held == (x,) and not slot.loads:
            return
        if slot.filling != x or not slot.pieces:
            slot.pieces, slot.filling = (), x
        pieces = dict(slot.pieces)
        pieces[touch.piece] = touch.part
        filled: dict[object, Fraction] = {}
        for piece, part in pieces.items():
            filled[piece.statement] = filled.get(piece.statement, Fraction(0)) + part
        if sum(filled.values(), Fraction(0)) >= 1:
            slot.held, slot.pieces = (x,), ()
            if max(filled.values()) < 1 and not all(piece.apart for piece in pieces):
                self.plan.doubt(f"statements that fill {place.ring} in parts may share cells")
        else:
            slot.pieces = tuple(sorted(pieces.items()))
            slot.held = tuple(sorted({*slot.held, x}, key=lambda v: (v is not None, v or 0)))


def _beside(slot: Slot, touch: Touch) -> bool:
    """Say whether a load goes on filling a stage with others, whose cells are not its own.

    A stage that is full has no such cells.
    """
    piece = touch.piece
    if piece is None or not (slot.loads and slot.pieces and slot.filling == touch.offset):
        return False
    return touch.part != 1 and all(piece.disjoint(other) for other, _ in slot.pieces)


def _over(seen: int, past: int, issued: int, late: bool) -> bool:
    """Say whether an agent knows that a phase is over.

    Who knows that it is over knows what was issued to it.
    """
    return not (past if late else issued) & ~seen
