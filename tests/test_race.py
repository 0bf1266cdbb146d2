"""The interpreter's memory: a race is found exactly where two accesses make one."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from tinygpu.meaning.race import Party, Shared, Use
from tinygpu.term.program import Buffer

THREADS = 4
OPERATIONS = st.tuples(
    st.sampled_from(("read", "write", "issue")),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3)), min_size=1, max_size=3, unique=True),
    st.booleans(),
)
TWO_READERS = [("read", [(0, thread)], False) for thread in (0, 1)]
DO: Any = None  # a use is told apart by its cells
PARTITIONS = ((0, 1, 2, 3), (0, 0, 0, 0), (0, 1, 1, 1), (0, 0, 1, 1))


@given(st.lists(OPERATIONS, max_size=12), st.sampled_from(PARTITIONS))
@example([*TWO_READERS, ("write", [(0, 0)], False)], PARTITIONS[1])
@example([*TWO_READERS, ("write", [(0, 1)], False)], PARTITIONS[1])
def test_uses_show_a_race_exactly_where_pairs_of_accesses_are_one(
    operations: list[tuple[str, list[tuple[int, int]], bool]], agent_of: tuple[int, ...]
) -> None:
    """Against the whole history, however threads are cut into agents.

    A barrier follows where the flag is set; waits stand just before it.
    """
    memory = Shared(Buffer("tile", "smem", "f32", (2,), (1,), 1, 2), {})
    parties = [Party(n) for n in range(max(agent_of) + 1)]
    known = np.zeros((len(parties), len(parties)), np.int64)
    history: list[tuple[int, int, int, str]] = []  # cell, thread, epoch, what
    flying: list[Use] = []
    epoch = 0
    for now, (what, touched, barrier) in enumerate(operations, start=1):
        found = False
        for party in parties:
            mine = [(c, t) for c, t in touched if agent_of[t] == party.number]
            if not mine:
                continue
            cells, threads = np.array(mine).T
            use = Use(DO, party, cells, threads, writes=what != "read")
            if what == "issue":
                flying.append(use)
            else:
                use.done.append((party.number, now))
            clock = known[party.number].tolist()
            found |= any(True for _ in memory.conflicts(0, use, clock))
            found |= use.writes and memory.twice(use) is not None
            memory.remember(0, use, clock, lambda: known.min(axis=0).tolist())
        history += [(c, t, epoch, what) for c, t in touched]
        expected = any(
            a[0] == b[0] and a[2] == b[2] and {a[3], b[3]} != {"read"}
            and (a[1] != b[1] or (a[3] == "issue" and i < j))
            for i, a in enumerate(history)
            for j, b in enumerate(history)
            if i != j
        )  # fmt: skip
        assert found == expected
        if expected:
            return
        if barrier:
            for use in flying:
                use.done.append((use.agent.number, now))
            flying, epoch = [], epoch + 1
            known[:] = now


def test_what_is_forgotten_is_in_no_race_any_more() -> None:
    """Of many uses those stay that somebody does not know of."""
    memory = Shared(Buffer("tile", "smem", "f32", (2,), (1,), 1, 2), {})
    one, other = Party(0), Party(1)
    cell, thread = np.array([0]), np.array([0])
    for now in range(1, 200):
        read = Use(DO, one, cell.copy(), thread, writes=False, done=[(0, now)])
        memory.remember(0, read, [now, 0], partial(list, [now - 5, 0]))
    assert len(list(memory.uses())) < 60
    write = Use(DO, other, cell, thread + 1, writes=True, done=[(1, 1)])
    times = sorted(use.done[0][1] for use, _, _ in memory.conflicts(0, write, [197, 0]))
    assert times == [198, 199]
