"""Rules of tcgen05: tensor memory, products into it, and what takes them out.

A product (tcgen05.mma) is issued by one thread.  It gets the address of its sums (lane in the
upper, column in the lower 16 bits), two matrix descriptors, and an *instruction descriptor*:

    bits 4-5  type of the sums (1: f32)        bits 17-22  N / 8
    bits 7-9, 10-12  types of the inputs       bits 24-28  M / 16, of a pair in all
    bits 15, 16  an input is MN-major

tcgen05.ld.32x32b gives each of a warpgroup's threads the columns of its own lane.  All tcgen05
instructions of a kernel are of one ``cta_group``: 2 if its products are those of pairs.

>>> f"{instruction_descriptor('bf16', 128, 128):#x} {instruction_descriptor('bf16', 256, 256):#x}"
'0x8200490 0x10400490'

Source: PTX ISA 9, "TensorCore 5th Generation Family Instructions" ("Instruction descriptor").
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from operator import mul

import numpy as np

from tinygpu.codegen.kernel.clusters import receivers
from tinygpu.codegen.kernel.kernel import KernelCode
from tinygpu.codegen.kernel.ptx import Scalar as Number
from tinygpu.codegen.kernel.scope import Scope, value_coordinates
from tinygpu.codegen.kernel.smem import TMEM_SLOT
from tinygpu.codegen.rules.descriptors import TCGEN05_FORMS, adds, descriptor, moved
from tinygpu.errors import ProgramError
from tinygpu.term.program import Access, Affine, Do, Program, walk
from tinygpu.term.statement import Arrive
from tinygpu.term.tensor_memory import (
    LANES,
    allocated_columns,
    columns_of,
    first_columns,
    placement,
)

__all__ = [
    "allocate", "allocated", "commit", "copy", "cta_group", "instruction_descriptor",
    "load_or_store", "mma", "release",
]  # fmt: skip

_TYPES = {  # spec: kind, and number
    "f16": ("f16", 0), "bf16": ("f16", 1), "tf32": ("tf32", 2),
    "e4m3": ("f8f6f4", 0), "e5m2": ("f8f6f4", 1),
}  # fmt: skip
_CELL_BYTES = 4
_SLICE_BYTES = 32  # spec: the k of one product
_LOADS = (1, 2, 4, 8, 16, 32, 64, 128)  # spec: columns of one tcgen05.ld.32x32b


def cta_group(program: Program) -> int:
    """Return how many CTAs multiply together: 1 or 2."""
    extents = dict(program.cluster)
    found = (
        extents.get(s.multicast, 1)
        for s, _ in walk(program)
        if isinstance(s, Do) and s.instruction.unit == "tensor"
    )
    return max(found, default=1)


def instruction_descriptor(
    dtype: str, rows: int, columns: int, *, rows_major: tuple[bool, bool] = (False, False)
) -> int:
    """Return the descriptor of products of ``dtype`` into f32: M and N, and which are MN-major."""
    kind = _TYPES[dtype][1]
    first, second = (int(major) for major in rows_major)
    shape = columns >> 3 << 17 | rows >> 4 << 24
    return 1 << 4 | kind << 7 | kind << 10 | first << 15 | second << 16 | shape


def allocate(kernel: KernelCode) -> None:
    """Let the CTA's first warp allocate; the address is in shared memory after a barrier."""
    text, group = kernel.text, cta_group(kernel.program)
    skip, others = text.label("allocated"), text.register("pred")
    at = f"[%smem+{kernel.addresses.plan.start[TMEM_SLOT]}]"
    columns = int(allocated_columns(kernel.program))
    text.emit(f"setp.ge.u32 {others}, %tid_x, 32")
    text.emit(f"@{others} bra {skip}")
    text.emit(f"tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 {at}, {columns}")
    text.emit(f"tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned")
    text.mark(skip)
    text.emit("tcgen05.fence::before_thread_sync")


def allocated(kernel: KernelCode) -> str:
    """Return the register with the allocation's address, read after the barrier."""
    text = kernel.text
    text.emit("tcgen05.fence::after_thread_sync")
    address = text.register("b32")
    text.emit(f"ld.shared.b32 {address}, [%smem+{kernel.addresses.plan.start[TMEM_SLOT]}]")
    return address


def release(kernel: KernelCode) -> None:
    """Let the warp that has allocated give the columns back, after the last barrier."""
    text, group = kernel.text, cta_group(kernel.program)
    skip, others = text.label("released"), text.register("pred")
    columns = int(allocated_columns(kernel.program))
    text.emit("tcgen05.fence::after_thread_sync")
    text.emit(f"setp.ge.u32 {others}, %tid_x, 32")
    text.emit(f"@{others} bra {skip}")
    text.emit(f"tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 {kernel.tmem}, {columns}")
    text.mark(skip)


def mma(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """tcgen05.mma: one product of k = 32 B, of one CTA or of a pair."""
    text = kernel.text
    x, y, before = do.reads
    if not (isinstance(x, Access) and isinstance(y, Access)) or before != do.write:
        raise ProgramError(f"{do}: a product adds two tiles of shared memory to its own sums")
    k, inner, outer, halves, high, blocks = (int(v) for v in do.values)
    rows, columns, group = high * blocks, inner * outer * halves, cta_group(kernel.program)
    from_tmem = x.buffer.level == "tmem"
    if k * x.buffer.type.bytes != _SLICE_BYTES or halves != group:
        raise ProgramError(f"{do}: a product takes 32 B of k, and columns of {group} CTAs")
    lies = value_coordinates(do.write, (1, inner, outer, halves, high, blocks))
    want = placement(rows, columns, paired=group == 2).reshape(-1, 2)
    if rows not in (LANES // 2, LANES) or not np.array_equal(lies, want):
        raise ProgramError(f"{do}: its sums do not lie in the lanes and columns of tcgen05.mma")
    if x.buffer.dtype not in _TYPES or y.buffer.dtype != x.buffer.dtype:
        raise ProgramError(f"{do}: tcgen05.mma multiplies {', '.join(_TYPES)}")
    half = columns // group
    if from_tmem:
        a, left_by_k = _first_input(kernel, do, x, scope), True
    else:
        left, left_known, left_by_k = descriptor(kernel, do, x, rows, scope, forms=TCGEN05_FORMS)
        a = moved(kernel, left, left_known)
    right, right_known, right_by_k = descriptor(kernel, do, y, half, scope, forms=TCGEN05_FORMS)
    b = moved(kernel, right, right_known)
    if x.buffer.type.bytes != 2 and not (left_by_k and right_by_k):
        raise ProgramError(f"{do}: inputs of 8 or 32 bits are read along k")
    what = instruction_descriptor(
        x.buffer.dtype, rows * group, columns, rows_major=(not left_by_k, not right_by_k)
    )

    def shape() -> Number:
        held = text.register("u32")
        text.emit(f"mov.u32 {held}, {what:#010x}")
        return held

    shown = text.once(("instruction descriptor", what), shape)
    more, sums = adds(kernel, do, scope), _address(kernel, do.write, scope)
    kind = f"cta_group::{group}.kind::{_TYPES[x.buffer.dtype][0]}"
    text.emit(f"tcgen05.mma.{kind} [{sums}], {a}, {b}, {shown}, {more}")


def _first_input(kernel: KernelCode, do: Do, x: Access, scope: Scope) -> str:
    """Return the address of a first input in tensor memory: a row a lane, k along the columns."""
    k, _, _, halves, high, blocks = (int(v) for v in do.values)
    row, step = np.indices((high * blocks, k))
    want = np.stack((row, step), axis=-1).reshape(-1, 2)
    lies = value_coordinates(x, (k, 1, 1, 1, high, blocks))
    if high * blocks != LANES or halves != 1 or not np.array_equal(lies, want):
        raise ProgramError(f"{do}: a first input in tensor memory has 128 rows of one CTA")
    return f"[{_address(kernel, x, scope)}]"


def copy(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """tcgen05.cp: tiles of 128 rows by 32 B, which a product could take, to 8 columns each."""
    (source,) = do.reads
    target, modes = do.write, range(2, len(do.values))
    assert isinstance(source, Access)
    width = source.buffer.type.bytes
    shape = tuple(map(int, do.values[:2]))
    if shape != (_SLICE_BYTES // width, LANES) or target.value[:2] != ((0, 1), (1, 0)):
        raise ProgramError(f"{do}: it copies 32 B of 128 rows, a row a lane")
    if cta_group(kernel.program) != 1 or target.buffer.dtype != source.buffer.dtype:
        raise ProgramError(f"{do}: it copies bits for one CTA")
    one = replace(do, values=do.values[:2], reads=(replace(source, value=source.value[:2]),))
    tile = one.reads[0]
    assert isinstance(tile, Access)
    base, known, by_k = descriptor(kernel, one, tile, LANES, scope, forms=TCGEN05_FORMS)
    if not by_k:
        raise ProgramError(f"{do}: it copies tiles that lie along k")
    strides = np.array(source.buffer.stride, np.int64)
    for place in np.ndindex(*(int(v) for v in do.values[:1:-1])):
        at = dict(zip(reversed(modes), place, strict=True))
        further = sum(n * int(np.dot(strides, source.value[mode])) for mode, n in at.items())
        along = sum(n * int(target.value[mode][1]) for mode, n in at.items())
        if any(int(target.value[mode][0]) for mode in modes):
            raise ProgramError(f"{do}: its tiles lie side by side in tensor memory")
        to = _address(kernel, _shifted(target, along), scope)
        of = moved(kernel, base, known + further * width)
        kernel.text.emit(f"tcgen05.cp.cta_group::1.128x256b [{to}], {of}")


def _shifted(access: Access, columns: int) -> Access:
    """Return an access to tensor memory so many elements further on in each lane."""
    lane, column = access.origin or (Affine(), Affine())
    return replace(access, origin=(lane, column + columns))


def _address(kernel: KernelCode, access: Access, scope: Scope, beyond: Number = 0) -> str:
    """Return the address of an access's stage and origin, which may have columns only.

    ``beyond`` (lanes) is added to it.  An address is of type .b32 (ptxas takes no .u32).
    """
    text, buffer = kernel.text, access.buffer
    slot, _ = kernel.rings.position(int(buffer.stages), access.index, scope)
    (lane, lanes), (column, terms) = (
        (scope.split(o) for o in access.origin) if access.origin else ((0, ()), (0, ()))
    )
    if lane or lanes:
        raise ProgramError(f"{access}: tensor memory is taken from lane 0 on")

    in_column = _CELL_BYTES // buffer.type.bytes
    if column % in_column or (terms and in_column != 1):
        raise ProgramError(f"{access}: it begins within a column of tensor memory, or moves")

    def make() -> Number:
        first = first_columns(kernel.program)[buffer.name] + column // in_column
        at = text.multiply_add(slot, int(columns_of(buffer)), first)
        at = text.add(kernel.addresses.sum(terms, scope, at), beyond)
        address = text.register("b32")
        text.emit(f"add.u32 {address}, {kernel.tmem}, {at}")
        return address

    return str(text.once(("tmem", buffer.name, slot, column, terms, beyond), make))


def load_or_store(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """tcgen05.ld, tcgen05.st: each thread's lane, some columns of it."""
    text, (source,) = kernel.text, do.reads
    assert isinstance(source, Access)
    loads = source.buffer.level == "tmem"
    tmem, held = (source, do.write) if loads else (do.write, source)
    columns, below = int(do.values[0]), list(accumulate((1, *do.threads), mul))
    own = all(
        n == 1 or s == (b, 0) for n, s, b in zip(do.threads, tmem.thread, below, strict=False)
    )
    if columns not in _LOADS or not own or below[-1] != LANES:
        raise ProgramError(f"{do}: 128 threads take the columns, 1 to 128, of their own lanes")
    warp = text.once(("warp", kernel.local), lambda: text.divide(kernel.local, 32))
    at = f"[{_address(kernel, tmem, scope, text.multiply(warp, 32 << 16))}]"
    listed = f"{{{', '.join(kernel.cells(held, do.values, scope))}}}"
    ends = f"{listed}, {at}" if loads else f"{at}, {listed}"
    text.emit(f"tcgen05.{'ld' if loads else 'st'}.sync.aligned.32x32b.x{columns}.b32 {ends}")


def commit(kernel: KernelCode, arrive: Arrive, at: str) -> None:
    """tcgen05.commit: arrive, when this thread's products are done, here or at several CTAs."""
    text, group = kernel.text, cta_group(kernel.program)
    if arrive.bytes or arrive.barrier.home:
        raise ProgramError(f"{arrive}: a commit counts one arrival, at barriers of each CTA's own")
    mask = ""
    if arrive.to == "cluster" and kernel.ctas > 1:

        def make() -> Number:
            every = text.register("b16")
            text.emit(f"mov.b16 {every}, {(1 << kernel.ctas) - 1}")
            return every

        mask = str(text.once("mask of all", make))
    elif arrive.to not in ("cta", "cluster"):
        mask = receivers(kernel, arrive.to)
    many, to = (".multicast::cluster", f", {mask}") if mask else ("", "")
    how = f"cta_group::{group}.mbarrier::arrive::one.shared::cluster{many}"
    text.emit(f"tcgen05.commit.{how}.b64 {at}{to}")
