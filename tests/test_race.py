"""The interpreter's cells: a race is found exactly where two accesses make one."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from tinygpu.race import Cells

OPERATIONS = st.tuples(
    st.sampled_from(("read", "write", "issue")),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3)), min_size=1, max_size=3, unique=True),
    st.booleans(),
)


TWO_READERS = [("read", [(0, thread)], False) for thread in (0, 1)]


@given(st.lists(OPERATIONS, max_size=12))
@example([*TWO_READERS, ("write", [(0, 0)], False)])
@example([*TWO_READERS, ("write", [(0, 1)], False)])
def test_cells_find_a_race_exactly_where_pairs_of_accesses_show_one(
    operations: list[tuple[str, list[tuple[int, int]], bool]],
) -> None:
    """Against the whole history; a barrier follows where the flag is set, waits just before it."""
    cells, epoch = Cells(2), 0
    history: list[tuple[int, int, int, str]] = []  # cell, thread, epoch, what
    flying: list[tuple[Any, Any]] = []
    for node, (what, touched, barrier) in enumerate(operations):
        offset, thread = np.array(touched).T
        conflict = {"read": cells.read, "write": cells.write, "issue": cells.issue}[what](
            offset, thread, epoch, node
        )
        history += [(c, t, epoch, what) for c, t in touched]
        expected = any(
            a[0] == b[0] and a[2] == b[2] and {a[3], b[3]} != {"read"}
            and (a[1] != b[1] or (a[3] == "issue" and i < j))
            for i, a in enumerate(history)
            for j, b in enumerate(history)
            if i != j
        )  # fmt: skip
        assert (conflict is not None) == expected
        if expected:
            return
        if what == "issue":
            flying.append((offset, thread))
        if barrier:
            for settled in flying:
                cells.settle(*settled, epoch, node)
            flying, epoch = [], epoch + 1
