"""Products of a warpgroup: wgmma.mma_async, its groups and fences, and setmaxnreg.

A product reads shared memory through the asynchronous proxy and owns its registers until a
``wait_group`` covers it.  Products of a warpgroup are performed in order.  The metadata of a sparse
A are read at once: each warp gives those of its 16 rows, as for mma.sp.

Source: PTX ISA 9.0, sections 9.7.15 (wgmma) and 9.7.19.5 (setmaxnreg).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np

from .decoder import Builder, Control, Decoder, Source, commits, operation, together, waits
from .descriptors import elements, matrix_at
from .matrices import dense, fragment, shape_of, sparsity
from .parser import Instruction
from .run import WARP, WARPGROUP, Group, Run
from .spaces import hold
from .values import products

__all__ = ["TABLE", "watch"]

_SM_REGISTERS = 65536
_ROWS = 64


def _fence(run: Run, here: Group, i: Instruction) -> None:
    run.used.update({number: {} for number in (here.threads[::WARPGROUP] // WARPGROUP).tolist()})


def _mma(d: Decoder, i: Instruction) -> Control:
    parts = i.parts
    _, columns, depth = shape_of(i)
    to, a_kind, b_kind = parts[-3:]
    result = fragment(d, i.operands[0], to, (16, columns), each=2)
    in_registers, sparse = i.operands[1].startswith("{"), "sp" in parts
    held = fragment(d, i.operands[1], a_kind, (16, depth >> sparse)) if in_registers else None
    if (count := len(result.registers)) != result.needs:
        raise d.error(f"{count} registers hold no 64 x {columns} of {to}")
    if held is not None and (count := len(held.registers)) != held.needs:
        raise d.error(f"{count} registers for 64 x {depth} of {a_kind}; it has {held.needs}")
    a_at = None if in_registers else d.source(i.operands[1], "u64")
    b_at = d.source(i.operands[2], "u64")
    rest = list(i.operands[3:])
    if sparse:
        columns_of = sparsity(d, rest, a_kind, depth, ordered=False)
        rest = rest[2:]
    scale = d.source(rest[0], "pred")
    signs = [d.number(x, (-1, 1)) for x in rest[1:3]] or [1, 1]
    turned = [bool(d.number(x, (0, 1))) for x in rest[3:5]]
    turns = (False, turned[0]) if in_registers and turned else tuple(turned) or (False, False)
    d.touch(8)

    def mma(run: Run, group: Group, number: int) -> None:
        registers = (*result.registers, *(held.registers if held else ()))
        _check_registers(run, number, registers)
        accumulate = _uniform(run, group, scale)
        cta = number * WARPGROUP // run.threads_per_cta
        a_addresses = columns_in = None
        if sparse:
            columns_in = columns_of(run, group)
            if columns_in is None:
                return
        if a_at is not None:
            given_a, shape = _uniform(run, group, a_at), (_ROWS, depth >> sparse)
            a_addresses = matrix_at(run, cta, given_a, a_kind, shape, turns[0])
            if a_addresses is None:
                return
        given_b = _uniform(run, group, b_at)
        b_addresses = matrix_at(run, cta, given_b, b_kind, (columns, depth), turns[1])
        if b_addresses is None:
            return
        read = [x.reshape(-1) for x in (a_addresses, b_addresses) if x is not None]
        channel = run.channel("wgmma", number, number * WARPGROUP)
        hold(run, group, np.concatenate(read), 1, channel, "multiplies")

        def perform() -> None:
            if held is not None:
                a = held.read(run, group)
            elif a_addresses is not None:
                a = elements(run, a_addresses, a_kind).reshape(4, 16, -1)
            if columns_in is not None:
                a = dense(a, columns_in)
            b = elements(run, b_addresses, b_kind)
            product = products(a.reshape(_ROWS, depth) * signs[0], b * signs[1])
            plus = result if accumulate else None
            result.write(run, group, product.reshape(4, 16, columns), plus)

        def landed(_: object) -> None:
            run.finish(pending)
            run.clocks.came(*run.members(group), step)  # a product needs all four warps

        step = len(run.log) - 1
        pending = run.issue(perform, ("wgmma", number))
        run.keep("wgmma", group, channel, landed, registers)

    def each(run: Run, here: Group) -> None:
        for first in here.threads[::WARPGROUP].tolist():
            mma(run, Group(np.arange(first, first + WARPGROUP)), first // WARPGROUP)

    return together(each, WARPGROUP)


def _check_registers(run: Run, number: int, registers: tuple[int, ...]) -> None:
    if number not in run.used:
        run.find("register", "no wgmma.fence before the first product")
    used = run.used.setdefault(number, {})
    first = next((r for r in registers if r in used), None)
    if first is not None:
        run.find("register", "no wgmma.fence since its registers were used", other=used[first])


def _uniform(run: Run, group: Group, source: Source) -> int:
    values = np.unique(source(run, group))
    if len(values) > 1:
        run.find("descriptor", "the warpgroup's threads give different operands")
    return int(values[0])


def watch(run: Run, group: Group, registers: tuple[int, ...]) -> None:
    """Report an ordinary instruction that touches registers that a product or a load owns."""
    warps = group.warp_numbers.tolist()
    for warp in warps if run.loading else ():
        filled = run.loading.get(warp, {})
        for register in filled.keys() & set(registers):
            message = "uses a register of a tcgen05.ld that no tcgen05.wait::ld covers"
            run.find("register", message, other=filled[register], who=warp * WARP)
    for number in dict.fromkeys(warp * WARP // WARPGROUP for warp in warps) if run.used else ():
        if number not in run.used:
            continue
        run.used[number].update(dict.fromkeys(registers, run.pc))
        for one in run.issued["wgmma"]:
            if one.group.threads[0] // WARPGROUP == number and {*one.registers} & {*registers}:
                message = "uses a register of a product that no wait_group covers"
                run.find("register", message, other=one.pc, who=number * WARPGROUP)


def _setmaxnreg(d: Decoder, i: Instruction) -> Control:
    """Give registers back to the CTA's pool, or take them as soon as there are enough."""
    number, increases = d.number(i.operands[0]), "inc" in i.parts
    if number % 8 or not 24 <= number <= 256:
        raise d.error("a multiple of 8 from 24 to 256 is needed")
    directives = d.kernel.directives
    limit = directives.get("maxnreg")
    ctas = directives.get("minnctapersm", (1,))[0]

    def change(run: Run, here: Group) -> None:
        threads = int(np.prod(run.block))
        entry = limit[0] if limit else min(_SM_REGISTERS // (threads * ctas) // 8 * 8, 255)
        for first in here.threads[::WARPGROUP].tolist():
            cta = first // run.threads_per_cta
            pools = run.pools
            pool = pools.setdefault(cta, [_SM_REGISTERS // ctas - entry * threads])
            mine = pools.setdefault(-1 - first // WARPGROUP, [entry])
            part = Group(np.arange(first, first + WARPGROUP))
            if number != mine[0] and increases != (number > mine[0]):
                way = "inc" if increases else "dec"
                run.find("register", f"setmaxnreg.{way} from {mine[0]} to {number}")
            more = (number - mine[0]) * WARPGROUP

            def take(pool: list[int] = pool, mine: list[int] = mine, more: int = more) -> bool:
                if more > pool[0]:
                    return False
                pool[0], mine[0] = pool[0] - more, number
                return True

            say = f"for {more} registers of the CTA's pool, which has {{0[0]}}".format
            run.poll(part, take, functools.partial(say, pool))
        if not increases:
            for poll in run.polls:
                poll()

    return together(change, WARPGROUP)


TABLE: Mapping[str, Builder] = {
    "wgmma.fence": operation(_fence, unit=WARPGROUP),
    "wgmma.commit_group": commits("wgmma", unit=WARPGROUP),
    "wgmma.wait_group": waits("wgmma", unit=WARPGROUP),
    **dict.fromkeys(("wgmma.mma_async", "wgmma.mma_async.sp"), _mma),
    "setmaxnreg": _setmaxnreg,
}
"""This family's builders by entry."""
