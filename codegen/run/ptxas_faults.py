"""Faults of ptxas that are known: which versions have them, and what to do.

>>> [fault.what for fault in faults_of("13.0.88")]
['it may drop the wait between ldmatrix in a loop and mma']
>>> faults_of("13.5.37")
()

Source: each row says its own.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FAULTS", "PtxasFault", "faults_of", "numbers_of", "way_out"]


@dataclass(frozen=True, slots=True)
class PtxasFault:
    """What versions from ``first`` to ``last``, both included, do wrong, and when it matters."""

    first: str
    last: str
    what: str
    when: str
    source: str

    def __str__(self) -> str:
        return f"{self.what} ({self.when}; {self.first} to {self.last})"


FAULTS: tuple[PtxasFault, ...] = (
    PtxasFault(
        "13.0.48",
        "13.0.88",
        "it may drop the wait between ldmatrix in a loop and mma",
        "seen in kernels of ampere with a bias, tiles of 32 x 64 x 32, four warps along n, issue 0",
        'docs/decisions.md, "ptxas 13.0.88 drops a wait": five of 36,850 kernels are wrong on H100 '
        "and H200; 13.0.48 and 13.0.88 make the same SASS of them, 13.1.80, 13.1.115, 13.2.86, "
        "13.3.73, 13.4.92 and 13.5.37 the right one",
    ),
)
_NEWER = "pip install -U nvidia-cuda-nvcc"


def faults_of(version: str) -> tuple[PtxasFault, ...]:
    """Return the known faults of a version of ptxas, given as ``13.0.88``."""
    return tuple(
        f for f in FAULTS if numbers_of(f.first) <= numbers_of(version) <= numbers_of(f.last)
    )


def way_out(version: str) -> str:
    """Return what to do about a wrong cubin of a version."""
    if faults_of(version):
        return f"it is a known fault of this version: {_NEWER}"
    return f"{_NEWER}, if there is a newer one, or choose another schedule"


def numbers_of(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, which are in its order."""
    return tuple(map(int, version.split(".")))
