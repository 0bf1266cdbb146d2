"""Code: a program as PTX text.

``emit(program)`` walks the term once.  Unrolled loops are unrolled here, others become a label and
a branch; every ``Do`` goes through the rule in ``RULES``.  The kernel takes the operands' pointers,
then ``signature(program)``: 32-bit integers, absent if the program is specialised, then
its scalars.  Of a program with barriers the CTA's threads branch to their roles.

>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines import MACHINES
>>> from tinygpu.machines.hopper import STARTS
>>> from tinygpu.machines.simt import LADDER
>>> from tinygpu.term.operation import matmul
>>> program = MACHINES["simt"].program(matmul(), Chosen(LADDER["naive"]))
>>> "fma.rn.f32" in emit(program)
True
>>> program = MACHINES["hopper"].program(matmul("bf16", layout="nt"), Chosen(STARTS["cluster"]))
>>> "wgmma.mma_async.sync.aligned.m64n256k16" in emit(program)
True

Source: ``docs/model.md``, section "Code"; PTX ISA 9.0, "Parallel Synchronization and Communication
Instructions".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, assert_never

from tinygpu.codegen.kernel.kernel import PTX_VERSION, KernelCode, Rule, integer_values, signature
from tinygpu.codegen.kernel.lookups import GroupWalk
from tinygpu.codegen.kernel.loops import (
    by_threads,
    instances,
    rotating_slots,
    stepped_pointers,
)
from tinygpu.codegen.kernel.peel import Rest, Short, apart, written_out
from tinygpu.codegen.kernel.ptx import Scalar as Number
from tinygpu.codegen.kernel.scope import Scope, TurnRange, value_coordinates
from tinygpu.codegen.kernel.trimming import trim
from tinygpu.codegen.rules import (
    arithmetic,
    barriers,
    cp_async,
    load_store,
    mma_sync,
    tcgen05,
    tma,
    wgmma,
)
from tinygpu.devices.device import ARCHITECTURES
from tinygpu.errors import (
    DeviceError,
    OperationError,
    ProgramError,
    TinyGpuError,
    nearest,
    raised,
    require_kind,
)
from tinygpu.legality.laws import require_sound
from tinygpu.term.access_map import Operand
from tinygpu.term.expression import LOOKUPS, Apply, Constant, Expression, Value
from tinygpu.term.fields import require_known
from tinygpu.term.plan import Plan, Term, kernels_of, steps_of
from tinygpu.term.program import (
    Access,
    Affine,
    Arrive,
    Block,
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
    counted,
    each,
    walked,
)

__all__ = ["EMITTER_VERSION", "PTX_VERSION", "RULES", "emit", "integer_values", "signature",
           "statement_at"]  # fmt: skip

EMITTER_VERSION = 4
RULES: Mapping[str, Rule] = {
    "ld.global": load_store.ld_global,
    "ld.shared": load_store.ld_shared,
    "st.global": load_store.st_global,
    "st.shared": load_store.st_shared,
    "red.global": load_store.red_global,
    "fma": arithmetic.fma,
    "alu": arithmetic.alu,
    "mufu": arithmetic.mufu,
    "cvt": arithmetic.cvt,
    "mov": arithmetic.mov,
    "shfl.sync": arithmetic.shfl,
    "cp.async": cp_async.copy,
    "ldmatrix": mma_sync.ldmatrix,
    "mma.sync": mma_sync.mma,
    "cp.async.bulk.tensor": tma.bulk_tensor,
    "cp.async.bulk.tensor.global": tma.bulk_tensor,
    "wgmma": wgmma.mma_async,
    "stmatrix": mma_sync.stmatrix,
    "tcgen05.mma": tcgen05.mma,
    "tcgen05.cp": tcgen05.copy,
    "tcgen05.ld": tcgen05.load_or_store,
    "tcgen05.st": tcgen05.load_or_store,
}
"""The rule of each instruction of a ``Do``, from the file of its family."""
_PREDICATED = ("st.global", "st.shared", "red.global")
"""What writes no register and asks for ``lanes`` itself; others are branched around."""
_AS_A_BRANCH = "bar.warp.sync -1"
"""Else ptxas makes a branch around loads a predicate and sinks them to the loop's end."""
_MOST_HELD = 8
_NO_SUM = "0x7fa5a5a5"  # a signalling NaN; spec: PTX ISA, "Floating Point Instructions"
_SM_REGISTERS = 65536  # spec: CUDA C++ Programming Guide, "Compute Capabilities"
_MOST_REGISTERS = 255


def emit(
    term: Term,
    arch: str = "sm_90a",
    sizes: Mapping[str, int] | None = None,
    *,
    unchecked: bool = False,
) -> str:
    """Return the kernel's PTX.  ``sizes`` are needed by a specialised program only.

    Of a plan one module has all kernels, in their order.

    Raises IllegalScheduleError for a term that a law or the judge refuses, unless it is
    ``unchecked``: such a kernel may hang a GPU, or compute anything.  Raises ProgramError for a
    term that has no code: an unknown instruction, a register ring at an index that is not known, a
    specialised program without sizes.
    """
    if not isinstance(term, Plan):
        require_kind("emit: program", term, Program, ProgramError)
    if arch not in ARCHITECTURES:
        raise DeviceError(f"emit: arch {arch}; {nearest(str(arch), ARCHITECTURES)}")
    require_kind("emit: sizes", sizes or {}, Mapping, OperationError)
    for program, own in _each(term, sizes) if not unchecked else ():
        require_sound(program, arch, own)
    noted = _noted(term, arch, sizes).split("\n")
    return "\n".join(line for line in noted if not line.startswith(_ORDER))


def statement_at(term: Term, arch: str, sizes: Mapping[str, int] | None, line: int) -> str:
    """Return the statement whose code has a line, from 1 on, of what ``emit`` returns, or ""."""
    found, left = "", line
    for text in _noted(term, arch, sizes).split("\n"):
        if text.startswith(("\t//", ".visible")):
            found = text.partition(" ")[2] if text.startswith("\t//") else ""
        left -= not text.startswith(_ORDER)
        if not left:
            break
    return found


def _each(
    term: Term, sizes: Mapping[str, int] | None
) -> Sequence[tuple[Program, Mapping[str, int] | None]]:
    return steps_of(term, sizes) if sizes else [(p, None) for p in kernels_of(term)]


def _noted(term: Term, arch: str, sizes: Mapping[str, int] | None) -> str:
    """Return the module with a comment at each statement that orders, too."""
    texts = []
    for program, own in _each(term, sizes):
        require_known(program)
        texts.append(Emitter(program, own).text_of(arch))
    return _joined(texts)


def _joined(texts: Sequence[str]) -> str:
    """Return one module of several, all for one architecture."""
    first, *others = texts
    declared = {line for line in first.splitlines() if line.startswith(_ONCE)}
    for text in others:
        lines = text.splitlines()
        first += "\n".join(["", *(line for line in lines if line not in declared), ""])
    return first


_ORDER = "\t//: "
"""What begins a comment that names a statement that orders."""
_ONCE = (".version", ".target", ".address_size", ".extern")


class Emitter(KernelCode):
    """The walk over a term that makes its kernel."""

    def text_of(self, arch: str) -> str:
        """Return the whole module."""
        program, text, self.arch = self.program, self.text, arch
        self.walks: dict[tuple[str, int], GroupWalk] = {}
        if program.takes_tiles:
            self._roles()
            directives = [f".reqntid {program.threads}, 1, 1"]
            directives.append(f".minnctapersm {program.ctas_per_sm}")
            if self.ctas > 1:
                directives.append(f".reqnctapercluster {self.ctas}, 1, 1")
            return self.module(arch, directives, tuple(self.maps.values()))
        if len(program.roles) > 1 or program.roles[0].copies > 1:
            raise ProgramError(
                f"program {program.name}: several roles, and no tiles that they take"
            )
        if self.ctas > 1:
            raise ProgramError(f"program {program.name}: a cluster, and no barriers")
        self._launched()
        self._after_others()
        self._ranks()
        self._enter(program.roles[0], 0)
        self.body(program.roles[0].body, Scope())
        text.emit("ret")
        text.lines += text.beside
        directives = [f".maxntid {program.threads}, 1, 1"]
        if program.ctas_per_sm > 1:
            directives.append(f".minnctapersm {program.ctas_per_sm}")
        return self.module(arch, directives)

    def _roles(self) -> None:
        """Let the threads branch to their roles."""
        program, text = self.program, self.text
        self._ranks()
        if program.barriers:
            self._initialise()
        self._after_others()
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
                self.body(role.body[:-1], Scope())
                for fence in self._untold(role):  # before what it took is released
                    text.emit(fence)
                if not shared:
                    self.body(role.body[-1:], Scope())
                if not first and program.in_tmem:
                    tcgen05.release(self)
            text.emit(f"bra {last}" if shared else "ret")
            text.mark(end)
            first = after
        if shared:
            text.mark(last)
            barriers.sync(self, shared)
        text.emit("ret")
        text.lines += text.beside

    def _untold(self, role: Role) -> Iterable[str]:
        """Return the fences that tell of what a role's warps took from tensor memory, or put."""
        waits = (s.how for s in each(role.body) if isinstance(s, WaitGroup))
        fences = dict.fromkeys(f.ptx + f.qualifiers for how in waits if (f := how.fence))
        return fences if self.program.in_tmem else ()

    def _last(self) -> Sync | None:
        """Return the barrier that ends all roles: one place for it, as synccheck wants it."""
        ends = [role.body[-1:] for role in self.program.roles]
        if self.program.in_tmem or any(end != ends[0] for end in ends):
            return None
        match ends[0]:
            case (Sync(scope=scope) as last,) if scope != "role":
                return last
        return None

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
        for barrier in (b for b in self.program.barriers if not b.named):
            for stage in range(barrier.stages):
                at = f"[%smem+{self.addresses.plan.start[barrier.name] + 8 * stage}]"
                text.emit(f"mbarrier.init.shared::cta.b64 {at}, {barrier.arrivals}")
        if self.ctas > 1:
            text.emit("fence.mbarrier_init.release.cluster")
        text.emit("fence.proxy.async.shared::cta")
        text.mark(skip)
        text.emit("bar.warp.sync -1")
        if self.program.in_tmem:
            tcgen05.allocate(self)
        if self.ctas > 1:  # the fence has released them, but not the address of tensor memory
            how = "release" if self.program.in_tmem else "relaxed"
            text.emit(f"barrier.cluster.arrive.{how}.aligned")
            text.emit("barrier.cluster.wait.aligned")
        else:
            text.emit("bar.sync 0")
        if self.program.in_tmem:
            self.tmem = tcgen05.allocated(self)

    def _after_others(self) -> None:
        """Wait for the kernel before, if this one may start early, and let the next one start."""
        if self.program.early:
            self.text.emit("griddepcontrol.wait")
            self.text.emit("griddepcontrol.launch_dependents")

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
        self.addresses.copy, self.addresses.local = self.copy, self.local
        if role.copy:
            self.addresses.variables[role.copy] = self.copy
        if self.program.takes_tiles and not self.program.persistent and self._outside_tiles(role):
            self._launched()

    def _outside_tiles(self, role: Role) -> bool:
        """Say whether a role names the grid's variables where no loop over tiles binds them."""
        axes = {axis.var for axis in self.program.grid}
        return any(
            name in axes
            for statement, around in walked(role.body)
            if not any(isinstance(block, ForTile) for block in around)
            for form in statement.forms
            for name, _ in form.terms
        )

    def _launched(self) -> str:
        """Return the number of the CTA's cluster; set the grid's variables to its tile."""
        linear = self.text.register("u32")
        source = "%clusterid.x" if self.ctas > 1 else "%ctaid.x"
        self.text.emit(f"mov.u32 {linear}, {source}")
        if not self.program.persistent:
            self.grid(linear)
        return linear

    def body(self, body: tuple[Statement, ...], scope: Scope) -> None:
        """Emit statements in order; copies of whole tiles that follow one another ask once."""
        before: Sequence[str] = ()
        for run in self._runs(body):
            statement, made = run[0], run[-1:]
            if not isinstance(statement, Do | Block):
                self.text.lines.append(f"{_ORDER}{statement}")
            match statement:
                case Do() if self._asks(statement):
                    self.whole_or_not([do for do in run if isinstance(do, Do)], scope)
                case Do():
                    self.do(statement, scope)
                case For(unrolled=True):
                    before, made = self._unrolled(statement, scope), ()
                case For():
                    self.loop(statement, scope)
                case When():
                    self.when(statement, scope)
                case Exit():
                    self.exit(statement, scope)
                case Sync():
                    barriers.sync(self, statement)
                case Commit() if not statement.how.committed:
                    raise ProgramError(f"{statement}: a wait covers all; leave it out")
                case Commit():
                    self.text.emit(f"{statement}{statement.how.qualifiers}")
                case WaitGroup() if not statement.how.committed:
                    self.text.emit(f"{statement}{statement.how.qualifiers}")
                case WaitGroup(pending) if pending < 0:
                    raise ProgramError(f"{statement}: pending groups are 0 or more; raise it")
                case WaitGroup(pending, read=read):
                    how = statement.how
                    if how.holds == "sums":
                        self._hold(before)
                    text = f"{how.ptx}.{how.wait}{'.read' * read}{how.qualifiers}"
                    self.text.emit(f"{text} {pending}")
                case Elect() | Wait() | Arrive() | Fence() if not self.program.barriers:
                    raise ProgramError(
                        f"program {self.program.name}: {statement} needs barriers and roles"
                    )
                case Elect(inside):
                    self._elect(inside, scope)
                case ForTile():
                    self._tiles(statement, scope)
                case Wait():
                    barriers.wait(self, statement, scope)
                case Arrive():
                    barriers.signal(self, statement, scope)
                case Fence():
                    self.text.emit(f"{statement}{statement.how.qualifiers}")
                case _:
                    assert_never(statement)
            before = self._few(made, scope) if made else before

    def _unrolled(self, loop: For, scope: Scope) -> Sequence[str]:
        """Emit the turns of an unrolled loop; return the few values that its last one made.

        Where a turn has statements of its own number behind a special function of few values, they
        are long, and the next turn is done beside them: what it begins with stays behind the few.
        """
        guards = [s.index for s in loop.body if isinstance(s, When)]
        beside = any(name == loop.var for index in guards for name, _ in index.terms)
        few: Sequence[str] = ()
        for inner in scope.within(loop):
            self._behind(few, loop.body, inner)
            self.body(loop.body, inner)
            few = self._few(loop.body, inner, "sfu") if beside else ()
        return few

    def _runs(self, body: tuple[Statement, ...]) -> Iterator[tuple[Statement, ...]]:
        """Yield statements, those that ask together whether tiles are whole as one run."""
        for asks, together in groupby(body, self._asks):
            run = tuple(together)
            yield from (run,) if asks else ((statement,) for statement in run)

    def _asks(self, statement: Statement) -> bool:
        """Say whether a statement asks whether its tile is whole."""
        return (
            self.program.guards == "tile"
            and isinstance(statement, Do)
            and statement.lanes is None
            and not statement.instruction.of_tile
            and any(guarded for access in statement.accesses for guarded in access.guard)
        )

    def _few(self, body: Sequence[Statement], scope: Scope, unit: str = "") -> Sequence[str]:
        """Return the registers of the last statement of arithmetic that makes few values, if any.

        With a ``unit`` it is the last one of that unit.
        """
        for do in reversed(body):
            if isinstance(do, Do) and (not unit or do.instruction.unit == unit):
                access = do.write
                own = access.buffer.level == "registers" and access.buffer.dtype == "f32"
                if own and do.instruction.unit != "tensor":
                    cells = [*dict.fromkeys(self.cells(access, do.values, scope))]
                    if len(cells) <= _MOST_HELD:
                        return cells
        return ()

    def _hold(self, few: Sequence[str]) -> None:
        """Keep what a wait waits for behind the arithmetic before it, of a few values.

        Else ptxas moves the wait up, before all arithmetic that products in flight should hide.  It
        leaves the wait behind a store that needs the results, and that is never done: it asks for
        bits that no sum of numbers has, as a NaN that add.f32 gives is 0x7fffffff.
        """
        if not few:
            return
        text, total = self.text, self.text.register("f32")
        first, *others = few
        text.emit(f"add.f32 {total}, {first}, {others[0] if others else first}")
        for cell in others[1:]:
            text.emit(f"add.f32 {total}, {total}, {cell}")
        never, bits = self._never(total)
        text.emit(f"@{never} st.shared.u32 [%smem], {bits}")

    def _behind(self, few: Sequence[str], body: Sequence[Statement], scope: Scope) -> None:
        """Keep what a body reads first of few values behind those: else ptxas moves it before."""
        first = next((do for do in body if isinstance(do, Do)), None)
        if not few or first is None:
            return
        reads = [r for r in first.reads if isinstance(r, Access) and r.buffer.level == "registers"]
        cells = [dict.fromkeys(self.cells(r, first.values, scope)) for r in reads]
        never, _ = self._never(few[0])
        for cell in min(cells, key=len, default={}):
            self.text.emit(f"selp.f32 {cell}, {few[0]}, {cell}, {never}")

    def _never(self, value: str) -> tuple[str, str]:
        """Return a predicate that holds for no number, and the bits that it has asked."""
        text = self.text
        bits, never = text.register("u32"), text.register("pred")
        text.emit(f"mov.b32 {bits}, {value}")
        text.emit(f"setp.eq.u32 {never}, {bits}, {_NO_SUM}")
        return never, bits

    def do(self, do: Do, scope: Scope) -> None:
        """Emit one statement through its rule."""
        self.text.note(str(do))
        how = do.instruction
        if do.write.buffer.home and how.issuer != "thread":
            raise ProgramError(f"{do}: only st.shared goes to another CTA")
        rule = _brought(how.lower) if how.lower else self.rule(do)
        alone = do.lanes is not None and how.name not in _PREDICATED
        if alone and how.issuer != "warpgroup":  # which issues it whole, whoever's values count
            self._by_lanes(rule, do, scope)
        else:
            rule(self, do, scope)

    def _by_lanes(self, rule: Rule, do: Do, scope: Scope) -> None:
        """Emit a branch of the other threads around a statement."""
        text, how = self.text, do.instruction
        together = how.issuer != "thread" or how.unit == "shuffle"
        if together and do.lanes is not None and do.lanes[0] % 32:
            raise ProgramError(f"{do}: whole warps execute it; let its lanes divide by 32")
        mine, skip = self.takes_part(do), text.label("others")
        text.emit(f"@!{mine} bra {skip}")
        with text.scope():
            rule(self, replace(do, lanes=None), scope)
        text.mark(skip)

    def rule(self, do: Do) -> Rule:
        """Return the rule of a statement's instruction.

        Raises ProgramError for one that has no code.
        """
        how, inside = do.instruction, bool(self.program.barriers)
        if how.name not in RULES:
            raise ProgramError(f"{do}: no lowering rule for {how.name}; give it lower= or a rule")
        if how.of_tile and not inside:
            raise ProgramError(
                f"{do}: {how.name} has code in programs with mbarriers and roles alone"
            )
        return RULES[how.name]

    def whole_or_not(self, run: Sequence[Do], scope: Scope) -> None:
        """Emit statements without guards for tiles that are whole, and with them for others.

        The others' code stands behind the kernel's: in its place a branch would go around it.
        """
        text = self.text
        plain = [
            replace(do, write=_unguarded(do.write), reads=tuple(map(_unguarded, do.reads)))
            for do in run
        ]
        whole = self.addresses.whole(run, scope)
        if not isinstance(whole, str):
            for do in plain if whole else run:
                self.do(do, scope)
            return
        partly, end = text.label("partly"), text.label("whole_end")
        text.emit(f"@!{whole} bra {partly}")
        with text.scope():
            for do in plain:
                self.do(do, scope)
            if any(map(_plain_load, plain)):
                text.emit(_AS_A_BRANCH)
        text.mark(end)
        with text.aside(), text.scope():
            text.mark(partly)
            for do in run:
                self.do(do, scope)
            text.emit(f"bra {end}")

    def loop(self, loop: For, scope: Scope) -> None:
        """Emit a running loop: positions before it, one step of each at its end."""
        text = self.text
        if self.paired:
            self._fold(loop, scope)
        if loop.start < 0:
            raise ProgramError(f"{loop}: it begins below 0; unroll it, or count from 0")
        trips = self.addresses.integer(loop.trips)
        if isinstance(trips, int) and trips <= loop.start:
            return
        first, last = apart(loop, scope) if self.program.barriers else (loop.start, 0)
        counter, stop = text.register("u32"), text.subtract(trips, last)
        again, end = text.label(loop.var), text.label(f"{loop.var}_end")
        text.emit(f"mov.u32 {counter}, {loop.start}")
        inner = replace(scope, running={**scope.running, loop.var: counter})
        shorter: list[tuple[str, Short]] = []
        with text.scope():
            steps = self._turns(loop, inner)
            for piece in written_out(loop.trips, loop.start, first, last, trips):
                match piece:
                    case TurnRange():
                        self._turn(loop, inner, piece, steps)
                    case Short(count, turns):
                        short = text.label(f"{loop.var}_short") if turns else end
                        text.emit(f"@!{text.less(count, trips)} bra {short}")
                        shorter += [(short, piece)] if turns else []
                    case Rest(known):
                        over = text.label(f"{loop.var}_last") if last else end
                        some = text.less(first, stop)
                        if some is not True:
                            text.emit(f"@!{some} bra {over}")
                        text.mark(again)
                        text.lines.append('\t.pragma "nounroll";')
                        self._turn(loop, inner, known, steps)
                        text.emit(f"@{text.less(counter, stop)} bra {again}")
                        if last:
                            text.mark(over)
            for short, piece in shorter:
                text.emit(f"bra {end}")
                text.mark(short)
                for known in piece.turns:
                    self._turn(loop, inner, known, steps)
            text.mark(end)

    def _turn(
        self, loop: For, scope: Scope, known: TurnRange, steps: list[Callable[[], None]]
    ) -> None:
        """Emit one turn of a running loop, and the steps to the next."""
        with self.text.scope():
            tma.look_up(self, loop.body, scope)
            here = replace(scope, turns={**scope.turns, loop.var: known})
            for do, at in instances(loop.body, here):
                wgmma.prepare(self, do, at, turn=True)
            self.body(loop.body, here)
            if known.far == 1:
                return
            for step in steps:
                step()
            counter = scope.running[loop.var]
            self.text.emit(f"add.s32 {counter}, {counter}, 1")

    def _turns(self, loop: For, scope: Scope) -> list[Callable[[], None]]:
        """Set the positions of a loop's accesses; return what moves each one on."""
        text, addresses = self.text, self.addresses
        for do, here in instances(loop.body, scope):
            if do.where is not None:
                addresses.compared(do, here, fixed_only=True)
        rings = self.rings.turning(loop.body, loop.var, loop.start, scope)
        if not self.program.takes_tiles:
            self._ask_whole(loop.body, scope)
        by_pointer = self.program.addressing == "pointer"
        stepped = stepped_pointers(addresses, loop, scope) if by_pointer else []
        slots = rotating_slots(addresses, loop, scope)
        for do, here in instances(loop.body, scope):
            for access in by_threads(do):
                addresses.prepare(access, do.threads, here)
            wgmma.prepare(self, do, here, turn=False)

        def step(pointer: Number, distance: Number) -> None:
            text.emit(f"add.s64 {pointer}, {pointer}, {distance}")

        def turn(offset: str, stage_bytes: int, limit: int) -> None:
            again = text.register("pred")
            text.emit(f"add.s32 {offset}, {offset}, {stage_bytes}")
            text.emit(f"setp.eq.s32 {again}, {offset}, {limit}")
            text.emit(f"selp.b32 {offset}, 0, {offset}, {again}")

        return [
            *(partial(self.rings.turn, ring) for ring in rings),
            *(partial(step, *one) for one in stepped),
            *(partial(turn, *one) for one in slots),
        ]

    def _ask_whole(self, body: tuple[Statement, ...], scope: Scope) -> None:
        """Ask before a loop what of its tiles' being whole is the same in all turns."""
        for run in self._runs(body):
            if self._asks(run[0]):
                dos = [do for do in run if isinstance(do, Do)]
                self.addresses.whole(dos, scope, fixed_only=True)
            for inner in scope.laid_out(run[0]):
                self._ask_whole(run[0].body, inner)

    def _fold(self, loop: For, scope: Scope) -> None:
        """Make the addresses of a loop's accesses in swizzled buffers, before it."""
        (inner,) = scope.within(loop)
        for do, here in instances(loop.body, inner):
            for access, threads, at in mma_sync.swizzled_points(do):
                self.folded(access, threads, at, here)

    def when(self, when: When, scope: Scope) -> None:
        """Emit a guarded body: nothing, the body, or a branch around it."""
        known, terms = scope.split(when.index)
        inside: str | bool | None = scope.below(known, terms, when.bound)
        if inside is None:
            index = self.addresses.sum(terms, scope, known)
            inside = self.text.less(index, self.addresses.integer(when.bound))
            scope = scope.where(known, terms, when.bound)
        if inside is False:
            return
        with self.text.scope():
            if inside is True:
                self.body(when.body, scope)
                return
            skip = self.text.label("skip")
            self.text.emit(f"@!{inside} bra {skip}")
            self.body(when.body, scope)
            if any(_plain_load(s) for s in when.body):
                self.text.emit(_AS_A_BRANCH)
            self.text.mark(skip)

    def exit(self, statement: Exit, scope: Scope) -> None:
        """Emit the early return of threads whose first element is outside already."""
        places = value_coordinates(statement.access, statement.values)
        at = places.min(axis=0, initial=0)
        if not (places == at).all(axis=1).any():
            raise ProgramError(f"{statement}: none of its values is the lowest in each dimension")
        inside = self.addresses.guard(statement.access, statement.threads, at, scope)
        if inside is False:
            self.text.emit("ret")
        elif inside is not True:
            self.text.emit(f"@!{inside} ret")

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

    def _at(self, tile: Number, clusters: Number, linear: Number) -> Number:
        """Return where a cluster's tile stands among all, counted from 0; see ``ForTile``."""
        text = self.text
        odd = text.modulo(tile, 2) if self.program.snake else 0
        if odd == 0:
            return text.multiply_add(tile, clusters, linear)
        own: Number = text.subtract(text.subtract(clusters, 1), linear)
        if isinstance(even := text.less(odd, 1), str):
            back, own = own, text.register("u32")
            text.emit(f"selp.b32 {own}, {linear}, {back}, {even}")
        return text.multiply_add(tile, clusters, own)

    def _later(
        self, tile: Number, at: Number, clusters: Number, linear: Number, turns: int
    ) -> Number:
        """Return where the tile so many turns after one stands, which stands at ``at``."""
        if self.program.snake:
            return self._at(self.text.add(tile, turns), clusters, linear)
        return self.text.multiply_add(turns, clusters, at)

    def _tiles(self, loop: ForTile, scope: Scope) -> None:
        """Emit the loop over a cluster's tiles, or the one tile that there is."""
        text, around = self.text, dict(self.addresses.variables)
        linear = self._launched()
        self._begin_walks(loop)
        start = self._value(loop.start, scope) if isinstance(loop.start, Affine) else loop.start
        if not self.program.persistent:
            if start != 0:
                raise ProgramError(f"for each tile from {loop.start}: there is but one, tile 0")
            with text.scope(), self._valued(loop):
                static = {**scope.static, loop.tile: 0, loop.turn: 0}
                inner = replace(scope, static=static)
                tma.prepare(self, loop.body, inner)
                trim(self, loop.body, inner)
                self.body(loop.body, inner)
            self.addresses.variables = around
            return
        clusters = text.register("u32")
        text.emit(f"mov.u32 {clusters}, {'%nclusterid.x' if self.ctas > 1 else '%nctaid.x'}")
        total: Number = 1
        for axis in self.program.grid:
            total = text.multiply(total, self.addresses.integer(f"grid_{axis.var}"))
        tile, turn, at = (text.register("u32") for _ in range(3))
        text.emit(f"mov.u32 {tile}, {start}")
        text.emit(f"mov.u32 {turn}, 0")
        text.emit(f"mov.u32 {at}, {self._at(start, clusters, linear)}")
        stride = text.multiply(clusters, loop.step)
        counters = self._counters(loop, start, linear, clusters)
        running = {loop.tile: tile, loop.turn: turn, **{counted(*one): r for one, r in counters}}
        inner = replace(scope, running={**scope.running, **running})
        again, end = text.label("tile"), text.label("tile_end")
        with text.scope():
            tma.prepare(self, loop.body, inner)
            more = text.less(at, total)
            text.emit(f"@!{more} bra {end}")
            text.mark(again)
            text.lines.append('\t.pragma "nounroll";')
            with text.scope():
                self.grid(at)
                with self._valued(loop):
                    trim(self, loop.body, inner)
                    self.body(loop.body, inner)
                    later = partial(self._later, tile, at, clusters, linear)
                    self._count(loop, counters, later)
                text.emit(f"add.s32 {tile}, {tile}, {loop.step}")
                text.emit(f"add.s32 {turn}, {turn}, 1")
                if self.program.snake:
                    text.emit(f"mov.u32 {at}, {self._at(tile, clusters, linear)}")
                else:
                    text.emit(f"add.s32 {at}, {at}, {stride}")
                more = text.less(at, total)
                text.emit(f"@{more} bra {again}")
            text.mark(end)
        self.addresses.variables = around

    @contextmanager
    def _valued(self, loop: ForTile) -> Iterator[None]:
        """Set the tile values of the tile at which the grid's variables are."""
        addresses = self.addresses
        around = dict(addresses.integers)
        for name, expression in loop.values:
            addresses.integers[name] = self._computed(expression)
        yield
        addresses.integers.clear()
        addresses.integers.update(around)

    def _computed(self, expression: Expression) -> Number:
        match expression:
            case Constant(number) if number == int(number):
                return int(number)
            case Value(name):
                return self.addresses.variable(name, Scope())
            case Apply("slot_group", (array, _, Constant(block), slot)):
                walk = self.walks[str(array), int(block)]
                walk.to(self._computed(slot))
                return self._copied(walk.group)
            case Apply("slots_before", (array, Constant(block), Value(name))):
                return self._copied(self._walk(name, array, int(block)).before)
            case Apply("element", (Value(array), Value(name))) if self._counts_rows(array, name):
                row, found = self.addresses.variables[name], self.text.register("u32")
                place = self.text.wide_multiply_add(row, 4, f"%p_{array}")
                self.text.emit(f"ld.global.u32 {found}, [{place}]")
                return found
            case Apply("element", (array, Value(name))):
                return self._copied(self._walk(name, array).end)
            case Apply("element", (array, Apply("sub", (Value(name), Constant(1))))):
                return self._copied(self._walk(name, array).begin)
            case Apply(operator, (one, other)) if operator not in LOOKUPS:
                return self.text.signed(operator, self._computed(one), self._computed(other))
        raise ProgramError(f"tile value {expression}: no code; write it with sums and quotients")

    def _counts_rows(self, array: str, name: str) -> bool:
        """Say whether a variable of the grid counts the rows of which an array has the lengths."""
        lengths = self.program.operation.lengths
        if lengths is None or lengths.name != array:
            return False
        return any(a.var == name and a.extent == Value(lengths.rows) for a in self.program.grid)

    def _copied(self, register: str) -> str:
        """Return what a register has now: a walk goes on to another tile's group."""
        found = self.text.register("u32")
        self.text.emit(f"mov.u32 {found}, {register}")
        return found

    def _walk(self, name: str, array: Expression, block: int | None = None) -> GroupWalk:
        """Return the walk that has gone to the group that a tile value is."""
        match self.program.tile_values.get(name):
            case Apply("slot_group", (same, _, Constant(own), _)) if same == array:
                if block in (None, int(own)):
                    return self.walks[str(array), int(own)]
        raise ProgramError(f"tile value: {name} is no group of {array}: no code; take the value "
                           "of slot_group")  # fmt: skip

    def _begin_walks(self, loop: ForTile) -> None:
        """Begin the walks over groups that a loop's values ask for, before it."""
        for node in (n for _, expression in loop.values for n in expression.nodes()):
            match node:
                case Apply("slot_group", (array, count, Constant(block), _)):
                    number = self._computed(count)
                    self.walks[str(array), int(block)] = GroupWalk(
                        self.text, str(array), number, int(block)
                    )

    def _there(self, loop: ForTile, at: Number, names: Iterable[str]) -> dict[str, Number]:
        """Return tile values of the tile at a linear number."""
        around = dict(self.addresses.variables)
        with self.text.scope():
            self.grid(at)
            with self._valued(loop):
                found = {name: self.addresses.integers[name] for name in names}
        self.addresses.variables = around
        return found

    def _counters(
        self, loop: ForTile, start: Number, linear: Number, clusters: Number
    ) -> list[tuple[tuple[str, str], str]]:
        """Make the running numbers that a loop over tiles counts, each in a register.

        Of all tiles they begin with those before ``start``, which other copies take.
        """
        text, own = self.text, loop.defines
        used = [
            (name, factor)
            for statement in each(loop.body)
            for form in statement.forms
            for name, factor in form.terms
            if factor in own
        ]
        found = [((v, str(name)), text.register("u32")) for v, name in dict.fromkeys(used)]
        for _, register in found:
            text.emit(f"mov.u32 {register}, 0")
        every = [(name, register) for (v, name), register in found if v == loop.tile]
        in_turn = loop.start == Affine(0, ((self.role.copy, 1),)) and self.role.copies <= loop.step
        if every and isinstance(start, str) and not in_turn:
            raise ProgramError(
                f"{loop}: {', '.join(n for n, _ in every)} counts on, and its first tile is no "
                "number and no copy below its step; begin there"
            )
        for i in range(start if isinstance(start, int) else loop.step - 1) if every else ():
            there = self._there(loop, self._at(i, clusters, linear), (n for n, _ in every))
            before = text.less(i, start)
            for name, register in every:
                more = there[name]
                if isinstance(before, str):
                    more = text.register("u32")
                    text.emit(f"selp.b32 {more}, {there[name]}, 0, {before}")
                text.emit(f"add.s32 {register}, {register}, {more}")
        return found

    def _count(
        self, loop: ForTile, counters: list[tuple[tuple[str, str], str]],
        later: Callable[[int], Number],
    ) -> None:  # fmt: skip
        """Count on: the tile's own values, and for all tiles those of the tiles in between."""
        text = self.text
        for (_, name), register in counters:
            text.emit(f"add.s32 {register}, {register}, {self.addresses.integer(name)}")
        every = [(name, register) for (v, name), register in counters if v == loop.tile]
        for i in range(1, loop.step) if every else ():
            there = self._there(loop, later(i), (n for n, _ in every))
            for name, register in every:
                text.emit(f"add.s32 {register}, {register}, {there[name]}")

    def _value(self, index: Affine, scope: Scope) -> Number:
        known, terms = scope.split(index)
        return self.addresses.sum(terms, scope, known)


def _brought(lower: Rule) -> Rule:
    """Return a user's rule, whose errors name the statement."""

    def rule(kernel: KernelCode, do: Do, scope: Scope) -> None:
        try:
            lower(kernel, do, scope)
        except TinyGpuError:
            raise
        except Exception as error:  # whatever a user's function may raise
            raise ProgramError(f"{do}: lower raises {raised(error)}; mend it") from error

    return rule


def _unguarded(operand: Operand) -> Any:
    """Return an operand without its guards."""
    return replace(operand, guard=()) if isinstance(operand, Access) else operand


def _plain_load(statement: Statement) -> bool:
    """Whether it loads from global memory with no guard."""
    return (
        isinstance(statement, Do)
        and statement.instruction.loads
        and not any(g for a in statement.accesses for g in a.guard)
    )
