"""Triton's kernel of a grouped matmul: each program walks the groups, and takes its tiles of each.

``gated`` ends a product with gate and up side by side: c = silu(gate) up, element by element.

Source: Triton 3.6, tutorials, "Group GEMM"; with the groups' ends in one array.
"""

import triton
import triton.language as tl

__all__ = ["gated", "kernel"]


def _grouped(
    a: tl.tensor,
    b: tl.tensor,
    c: tl.tensor,
    ends: tl.tensor,
    groups: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    sms: tl.constexpr,
) -> None:
    """c[m,n] = a[m,k] b[g,n,k], row-major."""
    tile = tl.program_id(0)
    done, start = 0, 0
    across = tl.cdiv(n, block_n)
    for group in range(groups):
        end = tl.load(ends + group)
        many = tl.cdiv(end - start, block_m) * across
        own = b + tl.cast(group, tl.int64) * n * k
        while tile >= done and tile < done + many:
            at = tile - done
            rows = start + at // across * block_m + tl.arange(0, block_m)
            columns = at % across * block_n + tl.arange(0, block_n)
            steps = tl.arange(0, block_k)
            left = a + rows[:, None].to(tl.int64) * k + steps[None, :]
            right = own + columns[:, None].to(tl.int64) * k + steps[None, :]
            total = tl.zeros((block_m, block_n), tl.float32)
            for step in range(tl.cdiv(k, block_k)):
                inside = steps[None, :] < k - step * block_k
                x = tl.load(left, mask=(rows[:, None] < end) & inside, other=0.0)
                y = tl.load(right, mask=(columns[:, None] < n) & inside, other=0.0)
                total = tl.dot(x, y.T, total)
                left += block_k
                right += block_k
            place = c + rows[:, None].to(tl.int64) * n + columns[None, :]
            mask = (rows[:, None] < end) & (columns[None, :] < n)
            tl.store(place, total.to(tl.bfloat16), mask=mask)
            tile += sms
        done += many
        start = end


def _gated(
    both: tl.tensor, c: tl.tensor, many: tl.tensor, n: tl.tensor, block: tl.constexpr
) -> None:
    """c[m,n] = silu(both[m,n]) both[m,n + size of n]."""
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    first = at // n * n + at  # a row of both is twice as long
    gate = tl.load(both + first, mask=at < many, other=0.0).to(tl.float32)
    up = tl.load(both + first + n, mask=at < many, other=0.0).to(tl.float32)
    tl.store(c + at, (gate * tl.sigmoid(gate) * up).to(tl.bfloat16), mask=at < many)


kernel, gated = triton.jit(_grouped), triton.jit(_gated)
