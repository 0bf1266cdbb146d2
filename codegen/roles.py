"""Code of programs with several roles: mbarriers, clusters, elected threads, loops over tiles.

The CTA's threads branch to their role.  A ring's index (of a buffer or of a barrier) becomes its
stage and the parity of its phase (``rings.py``).

>>> from tinygpu.machine import Chosen
>>> from tinygpu.machines.hopper import STARTS, Hopper
>>> from tinygpu.operation import matmul
>>> term = Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS["cluster"]))
>>> "wgmma.mma_async.sync.aligned.m64n256k16" in RoleKernel(term, None).text_of("sm_90a")
True

Source: PTX ISA 9, "Parallel Synchronization and Communication Instructions"; ``docs/model.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tinygpu.codegen.clusters import home_rank, ranks_along
from tinygpu.codegen.emit import Kernel
from tinygpu.codegen.fragments import cells
from tinygpu.codegen.ptx import Scalar as Number
from tinygpu.codegen.rings import Rings
from tinygpu.codegen.scope import Scope
from tinygpu.codegen.tcgen05 import allocate, allocated, commit, release
from tinygpu.codegen.tensor import TILE_RULES, prepare
from tinygpu.codegen.tensor_map import TensorMap, tensor_maps
from tinygpu.codegen.trimming import expected_bytes, trim
from tinygpu.errors import ProgramError
from tinygpu.program import (
    Access,
    Affine,
    Arrive,
    Barrier,
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
from tinygpu.tensor_memory import uses_tensor_memory

__all__ = ["RoleKernel"]

_SM_REGISTERS = 65536  # spec: CUDA C++ Programming Guide, "Compute Capabilities"
_MOST_REGISTERS = 255
_FENCES = {
    "proxy.async": "fence.proxy.async.shared::cta",
    "wgmma": "wgmma.fence.sync.aligned",
    "tcgen05.before": "tcgen05.fence::before_thread_sync",
    "tcgen05.after": "tcgen05.fence::after_thread_sync",
}


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
        self.rings = Rings(self.text, self.addresses.sum)
        self.fragments: dict[tuple[str, int], str] = {}
        self.tmem: Number = 0  # the address of the columns that are allocated

    def text_of(self, arch: str) -> str:
        """Return the whole module."""
        program, text = self.program, self.text
        self._ranks()
        self._initialise()
        first = 0
        ends = [text.label("role_end") for _ in program.roles]
        shared, last = self._last(), text.label("last")
        for role, end in zip(program.roles, ends, strict=True):
            after = first + role.threads * role.copies
            if after < program.threads:
                other = text.less("%tid_x", after)
                text.emit(f"@!{other} bra {end}")
            with text.scope():
                self._enter(role, first)
                self.body(role.body[:-1] if shared else role.body, Scope())
                if not first and uses_tensor_memory(program):
                    release(self)
            text.emit(f"bra {last}" if shared else "ret")
            text.mark(end)
            first = after
        if shared:
            text.mark(last)
            self.sync(shared, Scope())
        text.emit("ret")
        directives = [f".reqntid {program.threads}, 1, 1", f".minnctapersm {program.ctas_per_sm}"]
        if self.ctas > 1:
            directives.append(f".reqnctapercluster {self.ctas}, 1, 1")
        return self.module(arch, directives, tuple(self.maps.values()))

    def _last(self) -> Sync | None:
        """Return the barrier that ends all roles: one place for it, as synccheck wants it."""
        ends = [role.body[-1] for role in self.program.roles]
        first = ends[0]
        if uses_tensor_memory(self.program) or any(end != first for end in ends):
            return None
        return first if isinstance(first, Sync) and first.scope != "role" else None

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
        text.emit("fence.proxy.async.shared::cta")
        text.mark(skip)
        text.emit("bar.warp.sync -1")
        if uses_tensor_memory(self.program):
            allocate(self)
        if self.ctas > 1:  # the fence has released them, but not the address of tensor memory
            how = "release" if uses_tensor_memory(self.program) else "relaxed"
            text.emit(f"barrier.cluster.arrive.{how}.aligned")
            text.emit("barrier.cluster.wait.aligned")
        else:
            text.emit("bar.sync 0")
        if uses_tensor_memory(self.program):
            self.tmem = allocated(self)
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
            text.emit("barrier.cluster.arrive.release.aligned")
            text.emit("barrier.cluster.wait.acquire.aligned")
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
                self.text.emit(_FENCES[kind])
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
        start = self._value(loop.start, scope) if isinstance(loop.start, Affine) else loop.start
        if not self.program.persistent:
            if start != 0:
                raise ProgramError(f"for each tile from {loop.start}: there is but one, tile 0")
            self.grid(linear)
            with text.scope():
                static = {**scope.static, loop.tile: 0, loop.turn: 0}
                inner = replace(scope, static=static)
                prepare(self, loop.body, inner)
                trim(self, loop.body, inner)
                self.body(loop.body, inner)
            return
        clusters = text.register("u32")
        text.emit(f"mov.u32 {clusters}, {'%nclusterid.x' if self.ctas > 1 else '%nctaid.x'}")
        total: Number = 1
        for axis in self.program.grid:
            total = text.multiply(total, self.addresses.integer(f"grid_{axis.var}"))
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
                trim(self, loop.body, inner)
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
        if isinstance(trips, int) and trips <= loop.start:
            return
        counter = text.register("u32")
        again, end = text.label(loop.var), text.label(f"{loop.var}_end")
        text.emit(f"mov.u32 {counter}, {loop.start}")
        inner = replace(scope, running={**scope.running, loop.var: counter})
        with text.scope():
            rings = self.rings.turning(loop.body, loop.var, loop.start, inner)
            skip = text.less(loop.start, trips)
            if skip is not True:
                text.emit(f"@!{skip} bra {end}")
            text.mark(again)
            text.lines.append('\t.pragma "nounroll";')
            with text.scope():
                self.body(loop.body, inner)
                for ring in rings:
                    self.rings.turn(ring)
                more = text.register("pred")
                text.emit(f"add.s32 {counter}, {counter}, 1")
                text.emit(f"setp.lt.s32 {more}, {counter}, {trips}")
                text.emit(f"@{more} bra {again}")
            text.mark(end)

    def _value(self, index: Affine, scope: Scope) -> Number:
        known, terms = scope.split(index)
        return self.addresses.sum(terms, scope, known)

    def barrier_at(self, barrier: Barrier, index: Affine, scope: Scope) -> tuple[str, Number]:
        """Return the address operand of a barrier's stage, and the parity of the index's phase."""
        base, start, parity = self._barrier(barrier, index, scope)
        return f"[{base}+{start}]", parity

    def _barrier(self, barrier: Barrier, index: Affine, scope: Scope) -> tuple[Number, int, Number]:
        """Return a register and the bytes beyond it of a barrier's stage, and the parity."""
        slot, parity = self.rings.position(barrier.stages, index, scope)
        start = self.addresses.plan.start[barrier.name]
        if isinstance(slot, int):
            return "%smem", start + 8 * slot, parity
        return self.text.multiply_add(slot, 8, "%smem"), start, parity

    def _wait(self, barrier: Barrier, index: Affine, scope: Scope) -> None:
        text = self.text
        at, parity = self.barrier_at(barrier, index, scope)
        again, passed = text.label("wait"), text.register("pred")
        text.mark(again)
        text.emit(f"mbarrier.try_wait.parity.shared::cta.b64 {passed}, {at}, {parity}")
        text.emit(f"@!{passed} bra {again}")

    def signal_at(self, barrier: Barrier, index: Affine, scope: Scope) -> str:
        """Return the address operand of a barrier's stage where it counts: at its home."""
        base, start, _ = self._barrier(barrier, index, scope)
        if not barrier.home:
            return f"[{base}+{start}]"
        plain, there = self.text.add(base, start), self.text.register("u32")
        home = home_rank(self, barrier.home)
        self.text.emit(f"mapa.shared::cluster.u32 {there}, {plain}, {home}")
        return f"[{there}]"

    def _arrive(self, arrive: Arrive, scope: Scope) -> None:
        text = self.text
        base, start, _ = self._barrier(arrive.barrier, arrive.index, scope)
        told = arrive.to != "cta" and not arrive.after
        ranks = ranks_along(self, arrive.to) if told else []
        many = len(ranks) > 1
        if many and (arrive.bytes or arrive.barrier.home):
            raise ProgramError(f"{arrive}: it counts at one barrier alone, its own or its home's")
        if arrive.after:
            commit(self, arrive, f"[{base}+{start}]")
        elif arrive.barrier.home:
            at = self.signal_at(arrive.barrier, arrive.index, scope)
            what, more = (".expect_tx", f", {arrive.bytes}") if arrive.bytes else ("", "")
            text.emit(f"mbarrier.arrive{what}.shared::cluster.b64 _, {at}{more}")
        elif arrive.bytes:
            at = f"[{base}+{start}], {expected_bytes(self, arrive, scope)}"
            text.emit(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, {at}")
        elif not many:
            text.emit(f"mbarrier.arrive.shared::cta.b64 _, [{base}+{start}]")
        else:
            plain = text.register("u32")
            text.emit(f"add.u32 {plain}, {base}, {start}")
            for rank in ranks:
                there = text.register("u32")
                text.emit(f"mapa.shared::cluster.u32 {there}, {plain}, {rank}")
                text.emit(f"mbarrier.arrive.shared::cluster.b64 _, [{there}]")

    def do(self, do: Do, scope: Scope) -> None:
        """Emit a statement on a tile through its rule, another one as elsewhere."""
        held = {a.buffer.fragment for a in do.accesses}
        if do.write.buffer.home and (do.instruction.name != "st.shared" or "wgmma" not in held):
            raise ProgramError(f"{do}: only sums of wgmma go to another CTA, by st.shared")
        tiled = do.instruction.issuer != "thread" or any(a.buffer.fragment for a in do.accesses)
        if not tiled:
            super().do(do, scope)
            return
        rule = TILE_RULES.get(do.instruction.name)
        if rule is None and do.instruction.unit in ("fma", "alu", "sfu"):
            super().do(do, scope)  # each thread its own values, as ``cells`` finds them
            return
        if rule is None:
            raise ProgramError(f"{do}: no lowering rule for {do.instruction.name} on a tile")
        self.text.note(str(do))
        rule(self, do, scope)

    def cells(self, access: Access, values: tuple[int, ...], scope: Scope) -> list[str]:
        """Return the register of each value that a thread has of a tile, or of its own."""
        if access.buffer.fragment:
            columns, rows = (int(v) for v in values)
            return cells(self, access, (columns, rows), scope)
        return super().cells(access, values, scope)

    def cell(self, name: str, number: int, kind: str) -> str:
        """Return a thread's register of a fragment by its number there."""
        key = (name, number)
        if key not in self.fragments:
            self.fragments[key] = self.text.register(kind)
        return self.fragments[key]

    def map_at(self, tensor_map: TensorMap) -> str:
        """Return the register that points to a tensor map."""
        return f"%{self.maps[tensor_map]}"

    def smem_at(self, name: str, stages: int, index: Affine, scope: Scope) -> Number:
        """Return how many bytes above ``%smem`` the stage of a buffer's index begins."""
        plan = self.addresses.plan
        known, terms = scope.split(index)
        if all(isinstance(c, int) and c % stages == 0 for _, c in terms):
            return known % stages * plan.stage_bytes[name] + plan.start[name]
        slot, _ = self.rings.position(stages, index, scope)
        return self.text.multiply_add(slot, plan.stage_bytes[name], plan.start[name])
