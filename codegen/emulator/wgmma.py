"""Products of a warpgroup: wgmma.mma_async, its groups and fences, and setmaxnreg.

A product reads shared memory through the asynchronous proxy and owns its registers until a
``wait_group`` covers it.  Products of a warpgroup are performed in order.

Source: PTX ISA 9.0, sections 9.7.15 (wgmma) and 9.7.19.5 (setmaxnreg).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping

import numpy as np

from tinygpu.codegen.emulator.decoder import Builder, Control, Decoder, Source, together
from tinygpu.codegen.emulator.descriptors import Operand, elements
from tinygpu.codegen.emulator.group import WARP, WARPGROUP, Group
from tinygpu.codegen.emulator.matrices import add, left
from tinygpu.codegen.emulator.parser import Instruction
from tinygpu.codegen.emulator.run import Run
from tinygpu.codegen.emulator.spaces import granules
from tinygpu.codegen.emulator.state import Issued, Products
from tinygpu.codegen.emulator.values import products as multiplied

__all__ = ["TABLE", "products"]

_SM_REGISTERS = 65536
_ROWS = 64


def products(run: Run, warpgroup: int) -> Products:
    """Return the state of a warpgroup, by its number in the batch."""
    if warpgroup not in run.state.products:
        channel = run.channel("wgmma", warpgroup, warpgroup * WARPGROUP)
        run.state.products[warpgroup] = Products(channel)
    return run.state.products[warpgroup]


def _each(action: Callable[[Run, Group, int, Products], None]) -> Control:
    """Return what executes an instruction for each complete warpgroup."""

    def act(run: Run, here: Group) -> None:
        for first in here.threads[::WARPGROUP].tolist():
            threads, n = Group(np.arange(first, first + WARPGROUP)), first // WARPGROUP
            action(run, threads, n, products(run, n))

    return together(act, WARPGROUP)


def _fence(d: Decoder, i: Instruction) -> Control:
    def fence(run: Run, group: Group, number: int, state: Products) -> None:
        state.touched.clear()
        state.fenced = True

    return _each(fence)


def _commit(d: Decoder, i: Instruction) -> Control:
    return _each(lambda run, group, number, state: state.commit())


def _wait(d: Decoder, i: Instruction) -> Control:
    pending = int(i.operands[0], 0)

    def wait(run: Run, group: Group, number: int, state: Products) -> None:
        run.tick()
        run.finish_groups(state, pending, group)
        state.release()

    return _each(wait)


def _mma(d: Decoder, i: Instruction) -> Control:
    parts = i.parts
    shape = next(p for p in parts if re.fullmatch(r"m64n\d+k\d+", p))
    columns, depth = (int(x) for x in re.findall(r"\d+", shape)[1:])
    to, a_kind, b_kind = parts[-3:]
    if to not in ("f32", "f16", "s32"):
        raise d.error(f"a result of type {to} is not run")
    if depth * d.kind(a_kind).itemsize != 32 or columns % 8 or not 8 <= columns <= 256:
        raise d.error(f"shape {shape} is none of .{a_kind}'s")
    if "satfinite" in parts:
        raise d.error("wgmma with .satfinite is not run")
    results = tuple(d.register(r) for r in d.listed(i.operands[0]))
    if len(results) != columns // (4 if to == "f16" else 2):
        raise d.error(f"{len(results)} registers hold no 64 x {columns} of {to}")
    in_registers = i.operands[1].startswith("{")
    given = tuple(d.register(r) for r in d.listed(i.operands[1])) if in_registers else ()
    a_at = None if in_registers else d.source(i.operands[1], "u64")
    b_at = d.source(i.operands[2], "u64")
    scale = d.source(i.operands[3], "pred")
    signs = [int(x, 0) for x in i.operands[4:6]] or [1, 1]
    turned = [bool(int(x, 0)) for x in i.operands[6:8]]
    turns = (False, turned[0]) if in_registers and turned else tuple(turned) or (False, False)
    d.touch(8)

    def mma(run: Run, group: Group, number: int, state: Products) -> None:
        pc, step = run.pc, run.tick()
        used = (*results, *given)
        _check_registers(run, state, used)
        accumulate = _uniform(run, group, scale)
        cta = number * WARPGROUP // run.threads_per_cta
        a_addresses = None
        if a_at is not None:
            a_descriptor = _uniform(run, group, a_at)
            operand = Operand(a_descriptor, a_kind, _ROWS, depth, turns[0])
            a_addresses = operand.addresses(run, cta)
            if a_addresses is None:
                return
        operand = Operand(_uniform(run, group, b_at), b_kind, columns, depth, turns[1])
        b_addresses = operand.addresses(run, cta)
        if b_addresses is None:
            return
        read = [x.reshape(-1) for x in (a_addresses, b_addresses) if x is not None]
        at = np.unique(granules(run, np.concatenate(read), 1))
        rows = run.rows(group)[:: run.unit, None]
        conflict = run.clocks.read(at[None], rows, step, proxy=True, agent=state.channel)
        run.conflict(conflict, "multiplies")

        def perform() -> None:
            if a_addresses is not None:
                a = elements(run, a_addresses, a_kind)
            else:
                a = left(run, group, given, a_kind).reshape(_ROWS, depth)
            b = elements(run, b_addresses, b_kind)
            product = multiplied(a * signs[0], b * signs[1]).reshape(4, 16, columns)
            add(run, group, results, results if accumulate else (), product, d.kind(to))

        pending = run.issue(perform, ("wgmma", number))
        state.open.append(Issued(pending, pc, step, used))
        state.held.update(dict.fromkeys(used, pc))

    return _each(mma)


def _check_registers(run: Run, state: Products, used: tuple[int, ...]) -> None:
    if not state.fenced:
        run.find("register", "no wgmma.fence before the first product")
        state.fenced = True
    for register in used:
        if register in state.touched:
            run.find(
                "register",
                "no wgmma.fence since its registers were used",
                other=state.touched[register],
            )
            return


def _uniform(run: Run, group: Group, source: Source) -> int:
    values = np.unique(source(run, group))
    if len(values) > 1:
        run.find("descriptor", "the warpgroup's threads give different operands")
    return int(values[0])


def watch(run: Run, group: Group, registers: tuple[int, ...]) -> None:
    """Report an ordinary instruction that touches registers that a product or a load owns."""
    for warp in group.warp_numbers.tolist():
        filled = run.state.loading.get(warp, {})
        for register in filled.keys() & set(registers):
            run.find(
                "register",
                f"{run.warp_name(warp * WARP)} uses a register of a tcgen05.ld that no "
                "tcgen05.wait::ld covers",
                other=filled[register],
            )
    for number in np.unique(group.threads // WARPGROUP).tolist():
        state = run.state.products.get(number)
        if state is None:
            continue
        for register in registers:
            state.touched[register] = run.pc
            if register in state.held:
                run.find(
                    "register",
                    f"{run.warp_name(number * WARPGROUP)} uses a register of a product that no "
                    "wait_group covers",
                    other=state.held[register],
                )


def _setmaxnreg(d: Decoder, i: Instruction) -> Control:
    """Give registers back to the CTA's pool, or take them as soon as there are enough."""
    number, increases = int(i.operands[0], 0), "inc" in i.parts
    if number % 8 or not 24 <= number <= 256:
        raise d.error("a multiple of 8 from 24 to 256 is needed")
    directives = d.kernel.directives
    limit = directives.get("maxnreg")
    ctas = directives.get("minnctapersm", (1,))[0]

    def change(run: Run, group: Group) -> Group | None:
        here = run.together(group, WARPGROUP)
        if here is None:
            return None
        threads = int(np.prod(run.block))
        entry = limit[0] if limit else min(_SM_REGISTERS // (threads * ctas) // 8 * 8, 255)
        pc, going = run.pc, []
        for first in here.threads[::WARPGROUP].tolist():
            cta = first // run.threads_per_cta
            pools = run.state.pools
            pool = pools.setdefault(cta, [_SM_REGISTERS // ctas - entry * threads])
            mine = pools.setdefault(-1 - first // WARPGROUP, [entry])
            part = Group(np.arange(first, first + WARPGROUP))
            if increases != (number >= mine[0]):
                way = "inc" if increases else "dec"
                run.find("register", f"setmaxnreg.{way} from {mine[0]} to {number}")
            more = (number - mine[0]) * WARPGROUP

            def take(pool: list[int] = pool, mine: list[int] = mine, more: int = more) -> bool:
                if more > pool[0]:
                    return False
                pool[0], mine[0] = pool[0] - more, number
                return True

            say = f"for {more} registers of the CTA's pool, which has {{0[0]}}".format
            if run.poll(part, pc, take, functools.partial(say, pool)):
                going.append(part.threads)
        if not increases:
            for poll in run.polls:
                poll()
        return Group(np.concatenate(going)) if going else None

    return Control(change, WARPGROUP)


TABLE: Mapping[str, Builder] = {
    "wgmma.fence": _fence,
    "wgmma.commit_group": _commit,
    "wgmma.wait_group": _wait,
    "wgmma.mma_async": _mma,
    "setmaxnreg": _setmaxnreg,
}
"""This family's builders by entry."""
