"""Code of programs with several roles: mbarriers, clusters, elected threads, loops over tiles.

The CTA's threads branch to their role.  A ring's index (of a buffer or of a barrier) becomes a
*position*: its stage and the parity of its phase, two registers that turn with the innermost loop
that the index counts, so that no remainder is taken inside.

>>> from tinygpu.machine import Chosen
>>> from tinygpu.machines.hopper import STARTS, Hopper
>>> from tinygpu.operation import matmul
>>> term = Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS["cluster"]))
>>> "wgmma.mma_async.sync.aligned.m64n256k16" in RoleKernel(term, None).text_of("sm_90a")
True

Source: PTX ISA 9, "Parallel Synchronization and Communication Instructions"; ``docs/model.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tinygpu.codegen.emit import Kernel
from tinygpu.codegen.ptx import Scalar as Number
from tinygpu.codegen.scope import Scope
from tinygpu.codegen.tensor import TILE_RULES, prepare
from tinygpu.codegen.tensor_map import tensor_map_of, tensor_maps
from tinygpu.errors import ProgramError
from tinygpu.program import (
    Affine,
    Arrive,
    Barrier,
    Block,
    Do,
    Elect,
    Fence,
    For,
    ForTile,
    Program,
    Role,
    Statement,
    Sync,
    Wait,
)

__all__ = ["RoleKernel"]

_SM_REGISTERS = 65536  # spec: CUDA C++ Programming Guide, "Compute Capabilities"
_MOST_REGISTERS = 255


class RoleKernel(Kernel):
    """One kernel of several roles in the making."""

    def __init__(self, program: Program, sizes: Mapping[str, int] | None) -> None:
        super().__init__(program, sizes)
        self.maps = {m: f"map_{i}" for i, m in enumerate(tensor_maps(program))}
        self.ctas = 1
        for _, extent in program.cluster:
            self.ctas *= extent
        self.role = program.roles[0]
        self.local = "%tid_x"  # this thread's number in its role's copy
        self.copy: Number = 0

    def text_of(self, arch: str) -> str:
        """Return the whole module."""
        program, text = self.program, self.text
        self._ranks()
        self._initialise()
        first = 0
        ends = [text.label("role_end") for _ in program.roles]
        for role, end in zip(program.roles, ends, strict=True):
            after = first + role.threads * role.copies
            if after < program.threads:
                other = text.less("%tid_x", after)
                text.emit(f"@!{other} bra {end}")
            with text.scope():
                self._enter(role, first)
                self.body(role.body, Scope())
            text.emit("ret")
            text.mark(end)
            first = after
        text.emit("ret")
        directives = [f".reqntid {program.threads}, 1, 1", f".minnctapersm {program.ctas_per_sm}"]
        if self.ctas > 1:
            directives.append(f".reqnctapercluster {self.ctas}, 1, 1")
        return self.module(arch, directives, tuple(self.maps.values()))

    def _ranks(self) -> None:
        """Set the variables of the CTA's rank in its cluster."""
        text = self.text
        rest: Number = 0
        if self.ctas > 1:
            rest = text.register("u32")
            text.emit(f"mov.u32 {rest}, %cluster_ctarank")
        for name, extent in self.program.cluster:
            self.addresses.variables[name] = text.modulo(rest, extent) if extent > 1 else 0
            rest = text.divide(rest, extent)

    def _initialise(self) -> None:
        """Let one thread make the barriers; then let the cluster see them."""
        text = self.text
        skip, others = text.label("made"), text.register("pred")
        text.emit(f"setp.ne.u32 {others}, %tid_x, 0")
        text.emit(f"@{others} bra {skip}")
        for name in self.maps.values():
            text.emit(f"prefetch.tensormap [%{name}]")
        for barrier in self.program.barriers:
            for stage in range(barrier.stages):
                at = f"[%smem+{self.addresses.plan.start[barrier.name] + 8 * stage}]"
                text.emit(f"mbarrier.init.shared::cta.b64 {at}, {barrier.arrivals}")
        if self.ctas > 1:
            text.emit("fence.mbarrier_init.release.cluster")
        text.emit("fence.proxy.async")
        text.mark(skip)
        text.emit("bar.warp.sync -1")
        self.sync(Sync(scope="cluster"), Scope())
        if self.program.early:
            text.emit("griddepcontrol.wait")
            text.emit("griddepcontrol.launch_dependents")

    def _enter(self, role: Role, first: int) -> None:
        """Set a role's thread number and copy, and its share of the registers."""
        text = self.text
        self.role = role
        entry = _SM_REGISTERS // (self.program.threads * self.program.ctas_per_sm) // 8 * 8
        if role.registers and role.registers != min(entry, _MOST_REGISTERS):
            way = "inc" if role.registers > entry else "dec"
            text.emit(f"setmaxnreg.{way}.sync.aligned.u32 {role.registers}")
        here = text.subtract("%tid_x", first)
        self.copy = text.divide(here, role.threads) if role.copies > 1 else 0
        self.local = str(text.modulo(here, role.threads) if role.copies > 1 else here)
        if role.copy:
            self.addresses.variables[role.copy] = self.copy

    def sync(self, statement: Sync, scope: Scope) -> None:
        """Emit a barrier: of a role's copy, of the CTA, of the cluster."""
        text = self.text
        if statement.scope == "cluster" and self.ctas > 1:
            # relaxed: it orders the CTAs' lives, no data of one is read by another
            text.emit("barrier.cluster.arrive.relaxed.aligned")
            text.emit("barrier.cluster.wait.aligned")
        elif statement.scope == "role":
            number = text.add(self.copy, statement.barrier)
            text.emit(f"bar.sync {number}, {self.role.threads}")
        else:
            text.emit(f"bar.sync {statement.barrier}")

    def order(self, statement: Statement, scope: Scope) -> None:
        """Emit what only a program of several roles has."""
        match statement:
            case Elect(body):
                self._elect(body, scope)
            case ForTile():
                self._tiles(statement, scope)
            case Wait(barrier, index):
                self._wait(barrier, index, scope)
            case Arrive():
                self._arrive(statement, scope)
            case Fence(kind):
                fences = {
                    "proxy.async": "fence.proxy.async.shared::cta",
                    "wgmma": "wgmma.fence.sync.aligned",
                }
                self.text.emit(fences[kind])
            case _:
                super().order(statement, scope)

    def _elect(self, body: tuple[Statement, ...], scope: Scope) -> None:
        text = self.text

        def make() -> Number:
            leads = text.register("pred")
            text.emit(f"setp.eq.u32 {leads}, {self.local}, 0")
            return leads

        leads, skip = text.once(("leads", self.local), make), text.label("elected")
        with text.scope():
            text.emit(f"@!{leads} bra {skip}")
            self.body(body, scope)
            text.mark(skip)
            text.emit("bar.warp.sync -1")

    def _tiles(self, loop: ForTile, scope: Scope) -> None:
        """Emit the loop over a cluster's tiles, or the one tile that there is."""
        text = self.text
        linear = text.register("u32")
        text.emit(f"mov.u32 {linear}, {'%clusterid.x' if self.ctas > 1 else '%ctaid.x'}")
        if not self.program.persistent:
            self.grid(linear)
            with text.scope():
                static = {**scope.static, loop.tile: 0, loop.turn: 0}
                inner = replace(scope, static=static)
                prepare(self, loop.body, inner)
                self.body(loop.body, inner)
            return
        clusters = text.register("u32")
        text.emit(f"mov.u32 {clusters}, {'%nclusterid.x' if self.ctas > 1 else '%nctaid.x'}")
        total: Number = 1
        for axis in self.program.grid:
            total = text.multiply(total, self.addresses.integer(f"grid_{axis.var}"))
        start: Number = (
            loop.start if isinstance(loop.start, int) else self._value(loop.start, scope)
        )
        tile, turn, at = (text.register("u32") for _ in range(3))
        text.emit(f"mov.u32 {tile}, {start}")
        text.emit(f"mov.u32 {turn}, 0")
        text.emit(f"mov.u32 {at}, {text.multiply_add(start, clusters, linear)}")
        stride = text.multiply(clusters, loop.step)
        inner = replace(scope, running={**scope.running, loop.tile: tile, loop.turn: turn})
        again, end = text.label("tile"), text.label("tile_end")
        with text.scope():
            prepare(self, loop.body, inner)
            more = text.less(at, total)
            text.emit(f"@!{more} bra {end}")
            text.mark(again)
            text.lines.append('\t.pragma "nounroll";')
            with text.scope():
                self.grid(at)
                self.body(loop.body, inner)
                text.emit(f"add.s32 {tile}, {tile}, {loop.step}")
                text.emit(f"add.s32 {turn}, {turn}, 1")
                text.emit(f"add.s32 {at}, {at}, {stride}")
                more = text.less(at, total)
                text.emit(f"@{more} bra {again}")
            text.mark(end)

    def loop(self, loop: For, scope: Scope) -> None:
        """Emit a running loop: positions before it, one step of each at its end."""
        text = self.text
        trips = self.addresses.integer(loop.trips)
        counter = text.register("u32")
        again, end = text.label(loop.var), text.label(f"{loop.var}_end")
        text.emit(f"mov.u32 {counter}, {loop.start}")
        inner = replace(scope, running={**scope.running, loop.var: counter})
        with text.scope():
            rings = self._turning(loop.body, loop.var, loop.start, inner)
            skip = text.less(loop.start, trips)
            if skip is not True:
                text.emit(f"@!{skip} bra {end}")
            text.mark(again)
            text.lines.append('\t.pragma "nounroll";')
            with text.scope():
                self.body(loop.body, inner)
                for slot, parity, stages in rings:
                    self._step(slot, parity, stages)
                more = text.register("pred")
                text.emit(f"add.s32 {counter}, {counter}, 1")
                text.emit(f"setp.lt.s32 {more}, {counter}, {trips}")
                text.emit(f"@{more} bra {again}")
            text.mark(end)

    def _step(self, slot: str, parity: str, stages: int) -> None:
        text, wraps = self.text, self.text.register("pred")
        text.emit(f"add.s32 {slot}, {slot}, 1")
        text.emit(f"setp.eq.s32 {wraps}, {slot}, {stages}")
        text.emit(f"@{wraps} mov.u32 {slot}, 0")
        text.emit(f"@{wraps} xor.b32 {parity}, {parity}, 1")

    def _turning(
        self, body: tuple[Statement, ...], name: str, start: int, scope: Scope
    ) -> list[tuple[str, str, int]]:
        """Make the positions that a loop turns by one; return stage, parity and stages of each."""
        found: dict[tuple[object, ...], tuple[str, str, int]] = {}
        for stages, index, here in _rings(body, scope):
            known, terms = here.split(index)
            if (name, 1) not in terms:
                continue
            if any(other in here.running and other not in scope.running for other, _ in terms):
                continue  # an inner loop turns it
            if name not in scope.running:
                continue
            base = known % stages
            key = ("ring", stages, base, terms)
            if key in found or stages == 1:
                continue
            rest = tuple(t for t in terms if t[0] != name)
            slot, parity = self.text.register("u32"), self.text.register("u32")
            at = self.addresses.sum(rest, here, base + start)
            self._position(at, stages, (slot, parity))
            self.text.remember(key, slot)
            self.text.remember((*key, "parity"), parity)
            found[key] = (slot, parity, stages)
        return list(found.values())

    def _position(self, at: Number, stages: int, to: tuple[str, str]) -> None:
        """Set stage and parity of a ring's index that is not negative."""
        text = self.text
        slot, parity = to
        text.emit(f"mov.u32 {slot}, {text.modulo(at, stages)}")
        text.emit(f"and.b32 {parity}, {text.divide(at, stages)}, 1" if isinstance(at, str)
                  else f"mov.u32 {parity}, {at // stages & 1}")  # fmt: skip

    def position(self, stages: int, index: Affine, scope: Scope) -> tuple[Number, Number]:
        """Return the stage of a ring's index, and the parity of its phase."""
        text = self.text
        known, terms = scope.split(index)
        base, turns = known % stages, known // stages
        if not terms:
            return base, turns & 1
        key = ("ring", stages, base, terms)
        slot = text.known(key)
        if slot is None:
            here, parity = text.register("u32"), text.register("u32")
            self._position(self.addresses.sum(terms, scope, base), stages, (here, parity))
            text.remember(key, here)
            text.remember((*key, "parity"), parity)
            slot = here
        parity_now = text.known((*key, "parity"))
        assert parity_now is not None
        return slot, text.exclusive_or(parity_now, 1) if turns % 2 else parity_now

    def _value(self, index: Affine, scope: Scope) -> Number:
        known, terms = scope.split(index)
        return self.addresses.sum(terms, scope, known)

    def barrier_at(self, barrier: Barrier, index: Affine, scope: Scope) -> tuple[str, Number]:
        """Return the address operand of a barrier's stage, and the parity of the index's phase."""
        slot, parity = self.position(barrier.stages, index, scope)
        start = self.addresses.plan.start[barrier.name]
        if isinstance(slot, int):
            return f"[%smem+{start + 8 * slot}]", parity
        at = self.text.multiply_add(slot, 8, "%smem")
        return f"[{at}+{start}]", parity

    def _wait(self, barrier: Barrier, index: Affine, scope: Scope) -> None:
        text = self.text
        at, parity = self.barrier_at(barrier, index, scope)
        again, passed = text.label("wait"), text.register("pred")
        text.mark(again)
        text.emit(f"mbarrier.try_wait.parity.shared::cta.b64 {passed}, {at}, {parity}")
        text.emit(f"@!{passed} bra {again}")

    def _arrive(self, arrive: Arrive, scope: Scope) -> None:
        text = self.text
        at, _ = self.barrier_at(arrive.barrier, arrive.index, scope)
        if arrive.bytes:
            text.emit(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, {at}, {arrive.bytes}")
        elif arrive.to == "cta" or self.ctas == 1:
            text.emit(f"mbarrier.arrive.shared::cta.b64 _, {at}")
        else:
            plain = text.register("u32")
            address, _, offset = at.strip("[]").partition("+")
            text.emit(f"add.u32 {plain}, {address}, {offset or 0}")
            for rank in range(self.ctas):
                there = text.register("u32")
                text.emit(f"mapa.shared::cluster.u32 {there}, {plain}, {rank}")
                text.emit(f"mbarrier.arrive.shared::cluster.b64 _, [{there}]")

    def do(self, do: Do, scope: Scope) -> None:
        """Emit a statement on a tile through its rule, another one as elsewhere."""
        tiled = do.instruction.issuer != "thread" or any(a.buffer.fragment for a in do.accesses)
        if not tiled:
            super().do(do, scope)
            return
        rule = TILE_RULES.get(do.instruction.name)
        if rule is None:
            raise ProgramError(f"{do}: no lowering rule for {do.instruction.name} on a tile")
        self.text.note(str(do))
        rule(self, do, scope)

    def map_of(self, do: Do) -> str:
        """Return the register that points to a statement's tensor map."""
        return f"%{self.maps[tensor_map_of(do)]}"

    def smem_at(self, name: str, stages: int, index: Affine, scope: Scope) -> Number:
        """Return how many bytes above ``%smem`` the stage of a buffer's index begins."""
        plan = self.addresses.plan
        known, terms = scope.split(index)
        if all(isinstance(c, int) and c % stages == 0 for _, c in terms):
            return known % stages * plan.stage_bytes[name] + plan.start[name]
        slot, _ = self.position(stages, index, scope)
        return self.text.multiply_add(slot, plan.stage_bytes[name], plan.start[name])


def _rings(body: tuple[Statement, ...], scope: Scope) -> Iterator[tuple[int, Affine, Scope]]:
    """Yield the depth and the index of every use of a ring, and the loops around it."""
    for statement in body:
        match statement:
            case Do():
                for access in statement.accesses:
                    if access.buffer.level == "smem":
                        yield access.buffer.stages, access.index, scope
                if statement.signal:
                    yield statement.signal[0].stages, statement.signal[1], scope
            case Wait(barrier, index) | Arrive(barrier, index):
                yield barrier.stages, index, scope
            case For(unrolled=True):
                for i in range(statement.start, int(statement.trips)):
                    inner = replace(scope, static={**scope.static, statement.var: i})
                    yield from _rings(statement.body, inner)
            case For():
                running = {**scope.running, statement.var: statement.var}
                yield from _rings(statement.body, replace(scope, running=running))
            case _ if isinstance(statement, Block):
                yield from _rings(statement.body, scope)
