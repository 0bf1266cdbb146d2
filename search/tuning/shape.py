"""A shape that a bundle of kernels serves: sizes by axis, one of which its rules cut."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["Shape", "matmul_shape"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes that a bundle serves, by axis, how much they count, and whose they are.

    ``along``: the axis whose sizes a rule cuts into intervals.
    """

    extents: tuple[tuple[str, int], ...]
    along: str
    weight: float = 1.0
    layer: str = ""

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes by their axes."""
        return dict(self.extents)

    @property
    def size(self) -> int:
        """The size along the axis of the rules."""
        return self.sizes[self.along]

    @property
    def at(self) -> tuple[int, ...]:
        """The sizes of the other axes."""
        return tuple(size for axis, size in self.extents if axis != self.along)

    def moved(self, size: int) -> Shape:
        """Return the shape with another size along the axis of the rules."""
        return replace(self, extents=tuple((self.sizes | {self.along: size}).items()))


def matmul_shape(m: int, n: int, k: int, weight: float = 1.0, layer: str = "") -> Shape:
    """Return a shape of a matmul, along m."""
    return Shape((("m", m), ("n", n), ("k", k)), "m", weight, layer)
