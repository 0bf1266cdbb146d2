"""Kernels of this project's own that compilers and libraries of others fill in.

Each module makes a folder of PTX with ``launches.json``, as ``benchmarks.races_of_others`` reads
it, with NumPy's results.  None needs a GPU, nor tinyGPU: they run where that compiler is installed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Launches"]


class Launches:
    """A folder's list of launches; arrays are saved beside it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.rows: list[Mapping[str, Any]] = []
        self.arrays = 0

    def add(
        self, file: str, kernel: str, grid: object, block: object, arguments: Sequence[object],
        expected: Mapping[Any, Any], held: Sequence[object] = (), **more: object,
    ) -> None:  # fmt: skip
        """Add a launch and write the list; ``expected`` has results by number of the argument."""
        row = {"file": file, "kernel": kernel, "grid": grid, "block": block, "racy": False, **more}
        row["arguments"] = [self._saved(a) for a in arguments]
        row["held"] = [self._saved(a) for a in held]
        row["expected"] = {str(n): self._saved(np.asarray(a)) for n, a in expected.items()}
        self.rows.append(row)
        (self.folder / "launches.json").write_text(json.dumps(self.rows, indent=1))

    def _saved(self, value: object) -> object:
        if not isinstance(value, np.ndarray):
            return value
        self.arrays += 1
        name = f"array{self.arrays}.npy"
        np.save(self.folder / name, value)
        return name
