"""Jobs by all cores that the process may use, a row of JSON for each."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = ["rows"]


def rows(
    work: Callable[[Any], Sequence[dict[str, Any]]],
    jobs: Iterable[Any],
    *,
    seconds: float,
    out: Path | None,
) -> Iterator[dict[str, Any]]:
    """Yield the rows that ``work`` returns for jobs, as they end, until ``seconds`` have passed.

    Each is also written to ``out``, a line of JSON.  Workers are forks, so that they have what
    was read before.
    """
    end = time.monotonic() + seconds
    file = None if out is None else out.open("w")
    with multiprocessing.get_context("fork").Pool(len(os.sched_getaffinity(0))) as pool:
        found = pool.imap_unordered(work, jobs)
        while (left := end - time.monotonic()) > 0:
            try:
                some = found.next(left)
            except (StopIteration, multiprocessing.TimeoutError):
                break
            for row in some:
                if file is not None:
                    print(json.dumps(row), file=file, flush=True)
                yield row
    if file is not None:
        file.close()
