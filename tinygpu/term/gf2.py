"""Layouts as matrices over GF(2), where what an access costs is a rank.

Write an index as its vector of bits, lowest first, and an offset likewise.  A matrix over GF(2)
maps the one to the other; column i is the offset of index 2^i, and the offset of an index is the
XOR of the columns at its set bits.

**Which layouts are matrices.**  Let all shapes be powers of two.  Then an index bit, being bit a of
the coordinate of a mode s:d, is worth 2^a d of offset, and an offset is the *sum* of the worths of
the bits set.  The sum is their XOR for every index if and only if no two worths share a bit: if
none do, nothing carries; if two do, the index with just these two bits differs.  A swizzle is
linear and maps columns to columns.  Power-of-two strides on disjoint digits qualify.

**Theorem.**  A linear map L on n bits takes 2^rank(L) values, each 2^(n - rank(L)) times.  Let A
hold the columns of the 5 lane bits, in bytes.  For aligned accesses of w = 2^p words, let U drop
the bits of an offset inside its group of w words, and B drop also those above the banks' 128 B;
let P hold all lanes, but only the lowest 4 bits of them if w = 2 and U does not send lane 1 to 0.
Then

    sectors    = 2^rank(A >> 5)
    wavefronts = 2^(5 - |P|) 2^(rank(U P) - rank(B P))

For U P takes 2^rank(U P) values, and each of the 2^rank(B P) places in the banks holds equally many
of them: the distinct words of a bank.  The index bits above the lane's XOR a constant into all
lanes, which permutes sectors, groups and places; so all steps cost the same, and so do all phases.
A vector of 2^k values is legal if and only if the k lowest value bits have the columns 1, 2, ..,
2^(k-1) and all other columns are 0 in their k lowest bits: then, and only then, is
f(start ^ j) = f(start) + j for all j < 2^k, with f(start) a multiple of 2^k.

>>> from tinygpu.term.layout import Swizzle, row_major
>>> tile = Layout((32, 32), (32, 1), Swizzle(5, 0, 5))   # (row, column) of f32, swizzled
>>> matrix = to_gf2(tile.in_bytes(4))                    # the lanes go down a column
>>> matrix.rank, gf2_bank_wavefronts(matrix, 4), gf2_sectors(matrix, 4)
(10, 1, 32)
>>> transpose = to_gf2(row_major(32, 32))                # index (j, i) -> index (i, j) of the tile
>>> gf2_sectors(matrix @ transpose, 4)                   # along a row
4

Source: Zhou et al., "Linear Layouts: Robust Code Generation of Efficient Tensor Computation Using
F2", arXiv:2505.23819; Triton, ``LinearLayout.h``.  The costs are those of ``tinygpu.term.access``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tinygpu.term.access import ACCESS_BYTES, BANK_BYTES, BANKS, SECTOR_BYTES, WARP_LANES
from tinygpu.term.layout import Layout, LayoutError

__all__ = [
    "Gf2Matrix",
    "gf2_bank_wavefronts",
    "gf2_sectors",
    "gf2_widest_vector",
    "kernel",
    "rank",
    "to_gf2",
]

LANE_BITS = WARP_LANES.bit_length() - 1


@dataclass(frozen=True, slots=True)
class Gf2Matrix:
    """A linear map of bit vectors: ``columns[i]`` is the image of index 2^i, as an int."""

    columns: tuple[int, ...]

    def __call__(self, index: int) -> int:
        """Return the image of an index.  Raises LayoutError for one of too many bits."""
        if not 0 <= index < 1 << len(self.columns):
            raise LayoutError(f"index {index}: this matrix takes {len(self.columns)} bits")
        image = 0
        for i, column in enumerate(self.columns):
            image ^= column * (index >> i & 1)
        return image

    def __matmul__(self, inner: Gf2Matrix) -> Gf2Matrix:
        """Return the composition ``i -> self(inner(i))``; unlike layouts, with any swizzles."""
        return Gf2Matrix(tuple(map(self, inner.columns)))

    def __str__(self) -> str:
        """Return the rows, the highest offset bit first, and index bit 0 leftmost."""
        height = max(max(self.columns, default=0).bit_length(), 1)
        rows = ("".join(".1"[c >> r & 1] for c in self.columns) for r in reversed(range(height)))
        return "\n".join(rows)

    @property
    def rank(self) -> int:
        """The rank; the map is injective if it is the number of columns."""
        return rank(self.columns)


def to_gf2(layout: Layout) -> Gf2Matrix:
    """Return the matrix of a layout, from bits of its flat index to bits of its offset.

    Raises LayoutError unless the shapes are powers of two and no two bits carry (see the module).
    """
    columns: list[int] = []
    for s, d in layout.flat_modes:
        if s.bit_count() != 1:
            raise LayoutError(f"to_gf2: {layout} has a mode of shape {s}; needs powers of two")
        columns += (d << a for a in range(s.bit_length() - 1))
    taken = 0
    for column in columns:
        if taken & column:
            raise LayoutError(
                f"to_gf2: {layout} is not linear, offset bits {taken & column:#b} carry; "
                f"needs power-of-two strides on digits of their own"
            )
        taken |= column
    return Gf2Matrix(tuple(map(layout.swizzle, columns) if layout.swizzle else columns))


def rank(columns: Iterable[int]) -> int:
    """Return how many of the bit vectors are linearly independent."""
    basis: list[int] = []
    for column in columns:
        rest = _reduce(column, basis)
        if rest:
            basis.append(rest)
    return len(basis)


def kernel(matrix: Gf2Matrix) -> tuple[int, ...]:
    """Return a basis of the indices that map to 0: the XORs of an index that keep its offset."""
    width = len(matrix.columns)
    basis: list[int] = []
    found: list[int] = []
    for i, column in enumerate(matrix.columns):
        # The low bits record which columns went in, and have no part in choosing the pivot.
        rest = _reduce(column << width | 1 << i, basis)
        (basis if rest >> width else found).append(rest)
    return tuple(found)


def gf2_bank_wavefronts(byte_offsets: Gf2Matrix, access_bytes: int) -> int:
    """Return ``bank_wavefronts`` of every warp access; the lane is the index's lowest 5 bits.

    Raises LayoutError for fewer bits or an offset that is no multiple of the access.
    """
    lanes = _lanes(byte_offsets, access_bytes)
    unit_bytes = max(BANK_BYTES, access_bytes)
    words = unit_bytes // BANK_BYTES
    units = [c // unit_bytes for c in lanes]
    phases = 2 if words == 2 and units[0] else 1
    units = units[: LANE_BITS - (phases - 1)]
    places = [u % (BANKS // words) for u in units]
    return phases << (rank(units) - rank(places))


def gf2_sectors(
    byte_offsets: Gf2Matrix, access_bytes: int, *, sector_bytes: int = SECTOR_BYTES
) -> int:
    """Return ``sectors`` of every warp access; the lane is the index's lowest 5 bits.

    Raises LayoutError for fewer bits, an offset that is no multiple of the access, or a sector
    that is no power of two or smaller than the access.
    """
    lanes = _lanes(byte_offsets, access_bytes)
    if sector_bytes.bit_count() != 1 or sector_bytes < access_bytes:
        raise LayoutError(f"gf2_sectors: a sector of {sector_bytes} B; needs 2^k >= {access_bytes}")
    return 1 << rank(c // sector_bytes for c in lanes)


def gf2_widest_vector(
    elements: Gf2Matrix, value_bits: int, element_bytes: int, *, max_bytes: int = 16
) -> int:
    """Return ``widest_vector``, in bytes; the value is the index's highest ``value_bits`` bits."""
    columns = elements.columns
    if not 0 <= value_bits <= len(columns):
        raise LayoutError(f"gf2_widest_vector: {value_bits} value bits of {len(columns)}")
    first = len(columns) - value_bits
    k = 0
    while k < value_bits and element_bytes << (k + 1) <= max_bytes:
        others = columns[:first] + columns[first + k + 1 :]
        if columns[first + k] != 1 << k or any(c % (2 << k) for c in others):
            break
        k += 1
    return element_bytes << k


def _reduce(vector: int, basis: list[int]) -> int:
    """XOR basis vectors into one, so that it is below each of their highest bits."""
    for b in basis:
        vector = min(vector, vector ^ b)
    return vector


def _lanes(byte_offsets: Gf2Matrix, access_bytes: int) -> tuple[int, ...]:
    columns = byte_offsets.columns
    if access_bytes not in ACCESS_BYTES or any(c % access_bytes for c in columns):
        raise LayoutError(f"access of {access_bytes} B: needs {ACCESS_BYTES}, dividing all columns")
    if len(columns) < LANE_BITS:
        raise LayoutError(f"access of {len(columns)} index bits; a warp's lanes need {LANE_BITS}")
    return columns[:LANE_BITS]
