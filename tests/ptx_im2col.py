"""Kernels that load pixels in im2col mode, and a loop that says which they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["IMAGES", "Images", "expected", "kernel"]


@dataclass(frozen=True)
class Images:
    """A tensor, outermost dimension first; corners, start and offsets: innermost (W) first."""

    shape: tuple[int, ...]
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    image: int
    start: tuple[int, ...]
    offsets: tuple[int, ...]
    channel: int = 0
    channels: int = 32
    pixels: int = 16
    swizzle: int = 0

    def array(self) -> NDArray[Any]:
        """Return the tensor: the first channel of pixels counts them from 1."""
        count = np.arange(1, 1 + int(np.prod(self.shape[:-1])), dtype=np.float32)
        return (count[:, None] + 1000 * np.arange(self.shape[-1], dtype=np.float32)).reshape(
            self.shape
        )


_SMALL = Images((1, 4, 4, 32), (-1, -1), (-1, -1), 0, (-1, -1), (0, 0))
IMAGES = {
    "padded": _SMALL,
    "offset": replace(_SMALL, offsets=(1, 1)),
    "two images": Images((2, 4, 4, 32), (0, 0), (0, 0), 0, (3, 1), (0, 0)),
    "past the last": Images((2, 4, 4, 32), (0, 0), (0, 0), 1, (3, 1), (0, 0)),
    "larger and smaller": Images((3, 5, 7, 16), (-2, 1), (3, -1), 1, (6, 2), (2, 0), pixels=40,
                                 channels=16),
    "lines": Images((3, 9, 48), (-1,), (1,), 1, (7,), (300,), channel=8),
    "volumes": Images((2, 3, 4, 5, 16), (-1, 0, -1), (0, -2, 1), 0, (1, 1, 0), (1, 2, 0),
                      channel=8, channels=16, pixels=64),
    "swizzled": Images((2, 4, 4, 32), (-1, -1), (0, 0), 0, (2, 1), (1, 0), swizzle=3),
}  # fmt: skip


def expected(of: Images) -> NDArray[Any]:
    """Return pixels by channels, as a walk over them finds them; zero outside of the tensor."""
    x, result = of.array(), np.zeros((of.pixels, of.channels), np.float32)
    sizes = of.shape[-2:0:-1]
    at, image = list(of.start), of.image
    for pixel in range(of.pixels):
        place = [image, *(a + o for a, o in zip(at[::-1], of.offsets[::-1], strict=True))]
        for channel in range(of.channels):
            where = (*place, of.channel + channel)
            if all(0 <= w < n for w, n in zip(where, of.shape, strict=True)):
                result[pixel, channel] = x[where]
        for n in range(len(at)):
            at[n] += 1
            if at[n] < sizes[n] + of.upper[n]:
                break
            at[n] = of.lower[n]
        else:
            image += 1
    chunks = result.reshape(-1, 4)
    swizzle = {0: 0, 1: 1, 2: 3, 3: 7}[of.swizzle]
    order = [n ^ (n >> 3 & swizzle) for n in range(len(chunks))]
    return chunks[order].reshape(result.shape)


def kernel(of: Images) -> str:
    """Return ``k(map, y)``: a load, and what it left in shared memory, in order."""
    coordinates = ", ".join(map(str, (of.channel, *of.start, of.image)))
    offsets = ", ".join(map(str, of.offsets))
    total = 4 * of.pixels * of.channels
    return f""".version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 y) {{
  .reg .b32 %r<6>, %t; .reg .b64 %m, %y; .reg .pred %p, %one;
  .shared .align 1024 .b8 held[{total}]; .shared .align 8 .b64 bar;
  mov.b64 %m, map; ld.param.u64 %y, [y]; mov.u32 %t, %tid.x; mov.u32 %r0, held;
  cvta.param.u64 %m, %m; setp.ne.u32 %one, %t, 0; @%one bra S;
  mbarrier.init.shared::cta.b64 [bar], 1; fence.proxy.async.shared::cta;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], {total};
  cp.async.bulk.tensor.{len(of.shape)}d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes
    [%r0], [%m, {{{coordinates}}}], [bar], {{{offsets}}};
S: bar.sync 0;
W: mbarrier.try_wait.parity.shared::cta.b64 %p, [bar], 0; @!%p bra W;
  mul.lo.u32 %r1, %t, 4; cvt.u64.u32 %m, %r1; add.u64 %y, %y, %m; add.u32 %r1, %r0, %r1;
  add.u32 %r2, %r0, {total};
L: ld.shared.b32 %r3, [%r1]; st.global.b32 [%y], %r3; add.u64 %y, %y, 128;
  add.u32 %r1, %r1, 128; setp.lt.u32 %p, %r1, %r2; @%p bra L;
  ret;
}}
"""
