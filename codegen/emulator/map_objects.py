"""Tensor maps that a kernel makes: tensormap.replace, and what lets TMA see them.

A map in memory has this file's own layout: 128 B, all zeros at first.  One that was written in the
launch may be used after a ``fence.proxy.tensormap::generic.acquire`` of its address, behind the
write and before the use.

Source: PTX ISA 9.0, sections 9.7.9.27 (tensormap.replace), 9.7.13.4 (fence.proxy) and
9.7.13.16 (tensormap.cp_fenceproxy).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from . import races, spaces
from .decoder import Action, Builder, Control, Decoder, together
from .errors import LaunchError
from .memory import PARAM
from .moves import space_of
from .parser import Instruction
from .report import Array
from .run import WARP, Group, Run, one_of
from .tensor_map import TensorMap

__all__ = ["TABLE", "decoded", "encoded", "map_at"]

_BYTES = 128
_LAYOUT = np.dtype([
    ("global_address", "u8"), ("global_stride", "u8", 4), ("global_dim", "u4", 5),
    ("box_dim", "u4", 5), ("element_stride", "u4", 5), ("rank", "u4"), ("elemtype", "u4"),
    ("swizzle_mode", "u4"), ("fill_mode", "u4"), ("interleave_layout", "u4"), ("rest", "u4", 2),
])  # fmt: skip
_KINDS = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f32", "f64", "bf16", "tf32",
          "tf32")  # fmt: skip
"""Types by their number in ``elemtype``."""


def encoded(held: TensorMap) -> Array:
    """Return a map's 128 bytes; a type that maps do not have is one of its width, as e4m3 is u8."""
    kind = held.dtype if held.dtype in _KINDS else f"u{8 * held.width}"
    raw = np.zeros(1, _LAYOUT)
    row, rank = raw[0], len(held.shape)
    row["global_address"], row["rank"] = held.address, rank - 1
    row["global_stride"][: rank - 1] = held.strides_bytes
    row["global_dim"][:rank], row["box_dim"][: len(held.box)] = held.shape, held.box
    row["element_stride"][:rank], row["swizzle_mode"] = 1, held.swizzle
    row["elemtype"], row["fill_mode"] = _KINDS.index(kind), np.isnan(held.fill)
    if held.corners:  # this layout has no fields for im2col
        row["elemtype"] = len(_KINDS)
    return raw.view(np.uint8)


def decoded(raw: Array) -> TensorMap:
    """Return a map.  Raises LaunchError for one that the driver would not make."""
    row = raw.view(_LAYOUT)[0]
    rank, kind = int(row["rank"]) + 1, int(row["elemtype"])
    if kind >= len(_KINDS) or row["interleave_layout"] or (row["element_stride"][:rank] != 1).any():
        raise LaunchError("tensor map: a type, an interleaved layout or strides that are not run")
    return TensorMap(
        int(row["global_address"]), _KINDS[kind], tuple(row["global_dim"][:rank].tolist()),
        tuple(row["global_stride"][: rank - 1].tolist()), tuple(row["box_dim"][:rank].tolist()),
        int(row["swizzle_mode"]), np.nan if row["fill_mode"] else 0.0,
    )  # fmt: skip


def map_at(run: Run, thread: int, pointer: int) -> TensorMap | None:
    """Return the map at an address, a parameter or in global memory; None, and a finding, else."""
    held: TensorMap | None = run.tensor_maps.get(pointer - PARAM)
    if held is not None:
        return held
    parts = run.memory.locate(np.array([pointer]), _BYTES)
    if not parts or pointer % 64:
        message = f"no tensor map is at {pointer:#x}; a .param or 128 B of global memory hold one"
        run.find("address", message, thread=thread)
        return None
    [part] = parts
    races.check_map(run, one_of(thread), part, _BYTES)
    try:
        return decoded(part.data[int(part.at[0]) :][:_BYTES])
    except LaunchError as error:
        run.find("descriptor", str(error), thread=thread)
        return None


def _replace(d: Decoder, i: Instruction) -> Action:
    """Write one field of maps."""
    field, space, kind = i.parts[3], space_of(d, i), i.parts[-1]
    dtype, offset = _LAYOUT.fields[field][:2] if _LAYOUT.fields else (np.dtype("u1"), 0)
    size = int(np.prod(dtype.shape))
    if len(i.operands) == 3:
        offset += d.number(i.operands[1], range(size)) * dtype.base.itemsize
    at, new = d.address(i.operands[0]), d.source(i.operands[-1], kind)
    d.touch(dtype.base.itemsize, space)

    def replace(run: Run, group: Group) -> None:
        values = np.broadcast_to(new(run, group), (group.size,)).astype(dtype.base)[:, None]
        spaces.write(run, space, group, at(run, group) + offset, values)

    return replace


def _copy(d: Decoder, i: Instruction) -> Control:
    """Copy a map from shared to global memory, once a warp."""
    to, of = d.address(i.operands[0]), d.address(i.operands[1])
    d.touch(16)
    d.touch(16, "global")

    def copy(run: Run, group: Group) -> None:
        first = group.where(np.diff(group.threads // WARP, prepend=-1) != 0)
        there, source, byte = to(run, first), of(run, first), np.dtype(np.uint8)
        for n in range(0, _BYTES, 16):
            for here, values in spaces.read(run, "shared", first, source + n, byte, 16):
                mine = there[np.isin(first.threads, here.threads)] + n
                spaces.write(run, "global", here, mine, np.ascontiguousarray(values))

    return together(copy)


TABLE: Mapping[str, Builder] = {"tensormap.replace": _replace, "tensormap.cp_fenceproxy": _copy}
"""This family's builders by entry."""
