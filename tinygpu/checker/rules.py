"""The rules: one node executed once, from its invariant, with everything asked on the way.

    D  deadlock   every agent ends the node with what stands in it
    B  balance    a contribution to phase x of a barrier comes while x is open, and no more come
                  than the barrier counts
    E  early      who contributes to x knows that x - D is over (D stages)
    A  parity     a wait for x begins when its agent knows that x - D is over, and its passing is
                  known to the contributions to x + D when that is over
    R  race       who touches cells knows of all that touched them before, unless both read
    V  value      a read of index x finds x in its slot, and all cells that it takes are written;
                  sums of products are read before something is written over them
    P  proxy      who comes through the asynchronous proxy knows the fence of who came through the
                  generic one; a wgmma follows a wgmma.fence after what else touched its registers;
                  a tcgen05 instruction knows what its thread knew at its last fence::after alone
    G  groups     a wait leaves 0 groups or more pending
    X  exit       at its end an agent has waited for what it started; somebody waited for each
                  load; what was sent to another CTA is known there, and to all of a CTA what was
                  done in its tensor memory

Which agent goes first is arbitrary: of two events that nothing orders, the one that is visited
second does not know the first, and R refuses.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tinygpu.checker.invariant import Contents, Invariant
from tinygpu.checker.outcome import refuse, uncertified
from tinygpu.checker.protocol import (
    ALL,
    NONE,
    PARTS,
    Action,
    Actor,
    Clock,
    Columns,
    Part,
    Phased,
    Protocol,
    Reference,
)
from tinygpu.checker.table import FENCES, GROUPS, UNCOMMITTED
from tinygpu.term.program import Arrive, Commit, Do, Exit, Fence, Sync, Wait, WaitGroup

__all__ = ["MANY", "Execution", "Situation"]

MANY = 1 << 30


class Situation(NamedTuple):
    """A part; the steps done and left, each exactly or from a number on; the tile's residue."""

    part: Part
    done: tuple[int, int]
    left: tuple[int, int]
    tile: int

    def __str__(self) -> str:
        def text(ends: tuple[int, int]) -> str:
            return f"{ends[0]}" if ends[0] == ends[1] else f"{ends[0]} or more"

        return f"{self.part}, {text(self.done)} steps done, {text(self.left)} left"


class Execution:
    """Execute a node from what is claimed of it."""

    def __init__(self, protocol: Protocol, node: Situation, claim: Invariant) -> None:
        self.protocol, self.node = protocol, node
        n = len(protocol.actors)
        self.todo = [
            [a for a in actions if self.runs(a)] if self.takes(actor) else []
            for actor, actions in zip(protocol.actors, protocol.todo[node.part], strict=True)
        ]
        more = sum(len(action.told) for todo in self.todo for action in todo)
        self.state, self.clocks, self.used = claim.copy(more)
        self.at = [0] * n
        self.begun = [-1] * n
        self.meeting: dict[Hashable, list[int]] = {}

    def run(self) -> Invariant:
        """Let each agent go on as far as it can, until all have done the node."""
        going = True
        while going:
            going = False
            for number, todo in enumerate(self.todo):
                while self.at[number] < len(todo) and self.step(todo[self.at[number]]):
                    self.at[number] += 1
                    going = True
        for number, todo in enumerate(self.todo):
            if self.at[number] < len(todo):
                self.refuse(
                    "deadlock", todo[self.at[number]], "waits for ever, or for a later step"
                )
        self.pruned()
        if self.node.part == "end":
            self.end()
        return self.state

    def refuse(self, rule: str, action: Action, *why: object) -> None:
        """End the check."""
        refuse(f"{rule}: {action} at {self.node}:", *why)

    # Which actions a node has.

    def takes(self, actor: Actor) -> bool:
        """Say whether an agent takes the node's tile."""
        return self.node.part in ("start", "end") or self.protocol.takes(actor, self.node.tile)

    def runs(self, action: Action) -> bool:
        """Decide the guards of an action at all counters of the node."""
        for guard in action.guards:
            low, high = self.ends(guard)
            if high < 0:
                continue
            if low < 0:
                uncertified(f"{action}: its guard is not decided at {self.node}")
            return False
        return True

    def ends(self, form: tuple[int, int, int]) -> tuple[int, int]:
        """Return the least and the greatest value of a form at the node."""
        constant, done, left = form
        low = high = constant
        for factor, (first, last) in ((done, self.node.done), (left, self.node.left)):
            if factor:
                both = sorted((factor * first, factor * last))
                low, high = low + both[0], high + both[1]
        return low, high

    def pruned(self) -> None:
        """Forget messages that nobody can wait for, of phases before the last that is over."""
        state = self.state
        keep = {
            (b.number, x)
            for b, stages in zip(self.protocol.barriers, state.open, strict=True)
            for at in stages
            for x in (at, at - b.stages)
        }
        state.messages = {at: clock for at, clock in state.messages.items() if at in keep}
        for (number, kind), groups in state.groups.items():
            if kind == "after":
                continue
            known, mine = self.tell(number), self.protocol.products[number]
            known[mine] = state.own[number, mine]  # of these who waits knows, and nobody else
            np.maximum(groups, known, out=groups)
            for older, newer in pairwise(groups):
                np.maximum(older, newer, out=newer)

    # Knowledge.

    def tell(self, number: int) -> Clock:
        """Return what the threads of an agent know and did."""
        found: Clock = np.maximum(self.state.known[number], self.state.own[number])
        return found

    def learn(self, action: Action, columns: Columns | int) -> None:
        """Note what each thread of an agent did."""
        collective = action.entry is not None and action.entry.issuer == "warp"
        alone = action.actor.count == 1 and not collective
        clocks = self.state.known if alone else self.state.own
        clocks[action.actor.number, columns] = ALL

    def again(self, columns: Columns, least: int = NONE) -> None:
        """Let all forget, of what is done anew: who was told before was told of less.

        Of what is counted by an index, what is before it (``least``) stays known.
        """
        if least == NONE:
            self.clocks[: self.used, columns] = NONE
        else:
            some = self.clocks[: self.used, columns]
            self.clocks[: self.used, columns] = np.minimum(some, least)

    def passed(self, action: Action) -> None:
        """Note that a wait is passed, or that somebody arrives, or will when products are done."""
        barrier, x = action.told[0]
        self.again([action.mark], x - barrier.stages)
        if action.done == "now":
            self.learn(action, action.mark)

    # Actions.

    def step(self, action: Action) -> bool:
        """Do one action; say whether its agent can go on."""
        number = action.actor.number
        match action.statement:
            case Do():
                if not self.do(action):
                    return False
            case Wait(barrier):
                if not (self.meet if barrier.named else self.wait)(action):
                    return False
            case Arrive(barrier):
                self.arrive(action)
            case Sync():
                if not self.sync(action):
                    return False
            case Commit(group) if GROUPS.get(group) not in UNCOMMITTED:
                groups = self.state.groups[number, self.group(action, group)]
                groups[1] = np.maximum(groups[0], groups[1])
                groups[:-1] = groups[1:].copy()
                groups[-1] = NONE
            case WaitGroup(pending, group):
                self.wait_group(action, int(pending), self.group(action, group))
            case Fence(kind):
                self.fence(action, kind)
            case Exit():
                self.exit(action)
            case _:
                uncertified(f"{action}")
        return True

    def group(self, action: Action, name: str) -> str:
        """Return how what is of a group is done."""
        if name not in GROUPS:
            uncertified(f"{action}")
        return GROUPS[name]

    def wait(self, action: Action) -> bool:
        """Wait for a phase of an mbarrier (A)."""
        (barrier, x), state, number = action.told[0], self.state, action.actor.number
        stage = x % barrier.stages
        if self.begun[number] != self.at[number]:
            self.begun[number] = self.at[number]
            if not self.over(number, barrier, x - barrier.stages, far=False):
                self.refuse("parity", action, "may pass on the parity of an older phase")
        opened = state.open[barrier.number][stage]
        if opened <= x:
            return False
        if opened != x + barrier.stages:
            self.refuse("parity", action, f"comes when phase {opened} is open, and may hang")
        if (barrier.number, x) not in state.messages:
            self.refuse("certificate", action, "no invariant says what it learns")
        np.maximum(state.known[number], state.messages[barrier.number, x], out=state.known[number])
        self.passed(action)
        return True

    def arrive(self, action: Action) -> None:
        """Arrive at barriers, with the bytes that they then expect."""
        s, many = action.statement, action.actor.count
        assert isinstance(s, Arrive)
        if s.barrier.named:
            self.contribute(action, *action.told[0], self.tell(action.actor.number), many, 0, 0)
            return
        if action.columns:
            self.passed(action)
        for barrier, x in action.told:
            message = self.tell(action.actor.number)
            if action.done == "committed":
                message[self.protocol.committed[action.actor.number]] = ALL
            self.contribute(action, barrier, x, message, many, int(s.bytes) * many, 0)

    def meet(self, action: Action) -> bool:
        """Arrive at a named barrier and wait for its phase."""
        (barrier, x), number = action.told[0], action.actor.number
        if self.begun[number] != self.at[number]:
            self.begun[number] = self.at[number]
            message = self.tell(number)
            self.contribute(action, barrier, x, message, action.actor.count, 0, 0)
        opened = self.state.open[barrier.number][x % barrier.stages]
        if opened <= x:
            return False
        if (barrier.number, x) not in self.state.messages:
            self.refuse("certificate", action, "no invariant says what it learns")
        known = self.state.known[number]
        np.maximum(known, self.state.messages[barrier.number, x], out=known)
        self.passed(action)
        return True

    def contribute(
        self, action: Action, barrier: Phased, x: int, message: Clock, arrived: int, expected: int,
        landed: int,
    ) -> None:  # fmt: skip
        """Contribute to a phase (B, E), which may end it (A)."""
        state, stage, agent = self.state, x % barrier.stages, action.actor
        at, need = (barrier.number, x), int(barrier.barrier.arrivals)
        if state.open[barrier.number][stage] != x:
            opened = state.open[barrier.number][stage]
            self.refuse("balance", action, f"counts for {barrier.name}@{x}, and {opened} is open")
        if not self.over(agent.number, barrier, x - barrier.stages, far=True):
            self.refuse("early", action, f"may count for {barrier.name}@{x - barrier.stages}")
        old = state.counts.get(at, (0, 0, 0, frozenset()))
        if at in state.counts and at not in state.messages:
            self.refuse("certificate", action, f"no message of {barrier.name}@{x}")
        if at not in state.counts:
            state.messages[at] = self.clocks[self.used]
            state.messages[at][:] = NONE
            self.used += 1
        who = old[3]
        if barrier.barrier.named:
            if agent.number in who:
                self.refuse("balance", action, f"arrives at {barrier.name}@{x} again")
            who = who | {agent.number}
        counts = (old[0] + arrived, old[1] + expected, old[2] + landed, who)
        np.maximum(state.messages[at], message, out=state.messages[at])
        state.counts[at] = counts
        if counts[0] > need:
            self.refuse(
                "balance", action, f"is arrival {counts[0]} at {barrier.name}@{x} of {need}"
            )
        if counts[0] == need and counts[1] == counts[2]:
            self.complete(action, barrier, x)

    def complete(self, action: Action, barrier: Phased, x: int) -> None:
        """End a phase: all waits for the one before it are passed by then (A)."""
        state, d, at = self.state, barrier.stages, (barrier.number, x)
        message = state.messages[at]
        if barrier.barrier.named:
            who = state.counts[at][3]
            for team in self.protocol.teams.values():
                if 0 < len(who.intersection(team)) < len(team):
                    self.refuse("deadlock", action, "ends a phase with some threads of a copy")
        else:
            wait = self.lacks(message, barrier.waited[x % d], x - d)
            if wait is not None:
                self.refuse("parity", action, f"ends {barrier.name}@{x} while "
                            f"{self.protocol.names[wait]} may not be passed")  # fmt: skip
        self.again([barrier.over[x % d]], x - d)
        message[barrier.over[x % d]] = ALL
        state.open[barrier.number][x % d] = x + d
        del state.counts[at]

    def over(self, number: int, barrier: Phased, x: int, *, far: bool) -> bool:
        """Say whether an agent knows that phase x is over, or of all arrivals at it.

        All arrivals are enough where no bytes are counted: they come before what the agent does
        next, or, from other CTAs (``far``), whatever overtakes them knows of them.
        """
        known = self.state.known[number]
        if known[barrier.over[x % barrier.stages]] >= x:
            return True
        if barrier.counts_bytes or barrier.barrier.named or (barrier.far and not far):
            return False
        complete = self.state.open[barrier.number][x % barrier.stages] > x
        return complete and self.lacks(known, barrier.arrived[x % barrier.stages], x) is None

    def lacks(self, clock: Clock, columns: Columns, least: int = ALL) -> int | None:
        """Return the first of the columns of which a clock lacks what is asked."""
        (missing,) = np.nonzero(clock[columns] < least)
        return int(columns[missing[0]]) if len(missing) else None

    def sync(self, action: Action) -> bool:
        """Meet at bar.sync or barrier.cluster; then each knows what all know."""
        s, a = action.statement, action.actor
        assert isinstance(s, Sync)
        protocol = self.protocol
        scope: dict[str, tuple[Hashable, int]] = {
            "cta": ((a.cta, int(s.barrier)), len(protocol.ctas[a.cta])),
            "role": ((a.team, int(s.barrier)), len(protocol.teams[a.team])),
            "cluster": ("cluster", len(protocol.actors)),
        }
        return self.rendezvous(action, *scope[s.scope])

    def rendezvous(self, action: Action, key: Hashable, many: int) -> bool:
        """Let agents go on when all have come; they know then what all know (but products)."""
        number = action.actor.number
        here = self.meeting.setdefault(key, [])
        if self.begun[number] != self.at[number]:
            self.begun[number] = self.at[number]
            here.append(number)
        if len(here) < many:
            return False
        together = np.maximum.reduce([self.tell(n) for n in here])
        for n in here:
            self.state.known[n] = np.maximum(self.state.known[n], together)
            if n != number:
                self.at[n] += 1
        del self.meeting[key]
        return True

    def wait_group(self, action: Action, pending: int, group: str) -> None:
        """Wait for all but the newest groups (G)."""
        if pending < 0:
            self.refuse("groups", action, "leaves fewer than 0 groups pending")
        number, state = action.actor.number, self.state
        groups = state.groups[number, group]
        covered = len(groups) - 1 - pending
        if group in UNCOMMITTED:
            if pending:
                uncertified(f"{action} leaves {pending} pending")
            covered = len(groups)
        given = np.maximum.reduce(groups[:covered])
        for clocks in (state.known, state.own) if group == "multiplied" else (state.own,):
            np.maximum(clocks[number], given, out=clocks[number])
        if action.actor.count == 1:
            np.maximum(state.known[number], given, out=state.known[number])
        groups[:covered] = NONE

    def fence(self, action: Action, kind: str) -> None:
        """Order what the threads did before what another proxy, or products, do (P)."""
        number = action.actor.number
        if FENCES.get(kind) == "registers":
            self.state.touched[number] = False
        elif FENCES.get(kind) == "after":
            if (number, "after") in self.state.groups:
                self.state.groups[number, "after"][0] = self.state.known[number]
        elif FENCES.get(kind) in ("proxy", "before"):
            told, alone = self.tell(number), action.actor.count == 1
            for thread in (False, True):
                done, fenced = self.protocol.fences[number, thread, FENCES[kind]]
                mine = self.state.known if alone and thread else self.state.own
                mine[number, fenced] = np.maximum(mine[number, fenced], told[done])
        else:
            uncertified(f"{action}")

    def exit(self, action: Action) -> None:
        """Let some threads, or all, leave: nobody may wait for them, nor they for what they did."""
        self.finished(action.actor)
        rest = self.todo[action.actor.number][self.at[action.actor.number] + 1 :]
        later = [
            a for part in PARTS[PARTS.index(self.node.part) + 1 :]
            for a in self.protocol.todo[part][action.actor.number]
        ]  # fmt: skip
        s = action.statement
        assert isinstance(s, Exit)
        moves = zip(s.threads, s.access.thread, strict=True)
        if not any(int(n) > 1 and any(map(int, steps)) for n, steps in moves):
            return  # all leave, or none
        for other in (*rest, *later):
            plain = other.entry is not None and other.entry.done == "now"
            s_ = other.statement
            crosses = isinstance(s_, Do) and (s_.across or s_.instruction.folds)
            if not plain or crosses or (other.entry and other.entry.issuer != "thread"):
                self.refuse("deadlock", other, f"follows {s}, which some threads take")

    # Memory.

    def do(self, action: Action) -> bool:
        """Do an instruction (R, V, P)."""
        assert action.entry is not None
        together = [action]
        if action.entry.done == "multiplied":
            team = self.product(action)
            together = [self.todo[n][self.at[n]] for n in team]
        for each in together:
            for one in each.references:
                if len(one.conflicts) or len(one.lane):
                    self.conflicts(each, one)
                if not one.write:
                    self.value(each, one)
        for each in together:
            if len(each.again):
                self.again(each.again)
        for each in together:
            self.effects(each)
            self.at[each.actor.number] += each is not action
        return bool(together)

    def product(self, action: Action) -> list[int]:
        """Return who issues a product, if all have come: a warpgroup issues it together.

        Who waits for it knows what the threads that issued it knew.
        """
        number, state = action.actor.number, self.state
        if state.touched[number]:
            self.refuse("proxy", action, "a wgmma.fence is missing before it")
        team = self.protocol.teams[action.actor.team]
        here = self.meeting.setdefault(("product", action.actor.team, action.site), [])
        if number not in here:
            here.append(number)
        if len(here) < len(team):
            return []
        told = np.maximum.reduce([self.tell(n) for n in team])
        for n in team:
            groups = state.groups[n, "multiplied"]
            np.maximum(groups[-1], told, out=groups[-1])
        del self.meeting["product", action.actor.team, action.site]
        return team

    def effects(self, action: Action) -> None:
        """Note what an instruction does, and who knows of it."""
        assert action.entry is not None
        done, number, state = action.entry.done, action.actor.number, self.state
        for i, one in enumerate(action.references):
            if one.ring.number in self.protocol.sums[number] and done != "multiplied":
                state.touched[number] = True
            if one.write:
                self.fill(action, one)
            if done == "landed":
                barrier, x = action.told[i]
                message = self.tell(number)
                message[one.mark] = ALL
                bits = one.cells.bit_count() * one.ring.buffer.type.bytes
                self.contribute(action, barrier, x, message, 0, 0, bits)
            elif one.columns and done == "now":
                self.learn(action, one.mark)
            elif one.columns and done != "committed":
                state.groups[number, done][-1, one.mark] = ALL

    def conflicts(self, action: Action, one: Reference) -> None:
        """Ask that an agent knows what touched the cells before (R)."""
        known = self.state.known[action.actor.number]
        if one.ring.buffer.level == "registers":  # a thread waits itself for what holds its own
            known = self.state.own[action.actor.number]
        elif action.entry is not None and action.entry.tensor:
            known = self.state.groups[action.actor.number, "after"][0]
        column = self.lacks(known, one.conflicts)
        if column is None:
            column = self.lacks(self.state.own[action.actor.number], one.lane)
        if column is not None:
            rule = "proxy" if self.protocol.rules[column][3] else "race"
            at, name = f"{one.ring.name}@{one.offset}", self.protocol.names[column]
            self.refuse(rule, action, f"touches {at} and does not know {name}")

    def adds(self, action: Action) -> bool:
        """Say whether a product adds to its sums, and does not start anew."""
        if action.fresh is None:
            return any(one.adds and not one.write for one in action.references)
        low, high = self.ends(action.fresh)
        if low <= 0 <= high and low != high:
            uncertified(f"{action}: where it starts anew is not decided at {self.node}")
        return low != 0

    def value(self, action: Action, one: Reference) -> None:
        """Ask that a slot holds what is read (V)."""
        if one.adds and not self.adds(action):
            return
        slots, stage = self.state.holds[one.ring.number], one.offset % one.ring.stages
        held = slots[stage]
        if held is None or held.index != one.offset:
            self.refuse("value", action, f"wants {one.ring.name}@{one.offset}, and its slot holds "
                        f"{'nothing' if held is None else held.index}")  # fmt: skip
        elif one.cells & ~held.written:
            self.refuse("value", action, f"reads cells of {one.ring.name} that nothing wrote")
        elif held.unread & one.cells and not one.adds:
            slots[stage] = replace(held, unread=held.unread & ~one.cells)

    def fill(self, action: Action, one: Reference) -> None:
        """Note what a slot holds after a write; sums are read before they are lost (V)."""
        slots, stage = self.state.holds[one.ring.number], one.offset % one.ring.stages
        held = slots[stage] or Contents(one.offset, 0)
        unread = held.unread
        if unread & one.cells and not (one.adds and self.adds(action)):
            self.refuse("value", action, f"writes over sums in {one.ring.name} that nobody read")
        more = held.written if held.index == one.offset else 0
        slots[stage] = Contents(
            one.offset, one.cells | more, unread | (one.cells if one.adds else 0)
        )

    # The end.

    def finished(self, actor: Actor) -> None:
        """Ask that an agent has waited for what it started (X)."""
        known, mine = self.tell(actor.number), self.protocol.products[actor.number]
        known[mine] = self.state.own[actor.number, mine]
        self.require(known, self.protocol.grouped[actor.number], "is not waited for")

    def require(self, clock: Clock, columns: Columns, why: str) -> None:
        """Ask that all is known of some columns at the end."""
        column = self.lacks(clock, columns)
        if column is not None:
            refuse(f"exit: {self.protocol.names[column]} at {self.node}: {why}")

    def end(self) -> None:
        """Ask what has to be true when all agents end (X)."""
        state = self.state
        for actor in self.protocol.actors:
            self.finished(actor)
        for (b, x), counts in state.counts.items():
            if counts[2]:
                refuse(f"exit: bytes land at {self.protocol.barriers[b].name}@{x} after the end")
        landed = np.concatenate(self.protocol.landed)
        self.require(state.known.max(axis=0), landed, "nobody waits for its bytes")
        every = np.maximum(state.known, state.own)
        for cta, here in self.protocol.ctas.items():
            self.require(every[here].max(axis=0), self.protocol.sent[cta],
                         f"may reach CTA {cta} when that has ended")  # fmt: skip
            self.require(state.known[here].min(axis=0), self.protocol.shared[cta],
                         "is not known to all when they end")  # fmt: skip
