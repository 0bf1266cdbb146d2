from __future__ import annotations

import io
import os
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sample import draws
from tinygpu.errors import StoreError
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.search import store as stored
from tinygpu.search.store import Store, measurements_in
from tinygpu.space.measurement import Measurement, describe
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.schedule import Schedule

text = st.text(max_size=8)
measurements = st.builds(
    Measurement,
    operation=text,
    sizes=text,
    schedule=text,
    device=text,
    driver=text,
    emitter=st.integers(0, 3),
    seconds=st.none() | st.floats(1e-9, 1.0),
    error=st.floats(0.0, allow_infinity=True, allow_nan=False),
    reason=text,
)
WRITER = """
import sys
from tinygpu.space.measurement import Measurement
from tinygpu.search import store as stored
from tinygpu.search.store import Store
with Store(sys.argv[1]) as store:
    for i in range(int(sys.argv[3])):
        store.put(Measurement(operation="o", sizes=str(i), schedule=sys.argv[2], device="d",
                              driver="r", emitter=1, seconds=float(i + 1)))
        print(i, flush=True)
"""


def one(sizes: str = "s", **changes: Any) -> Measurement:
    fields: dict[str, Any] = {"operation": "o", "schedule": "x", "device": "d", "driver": "r"}
    return Measurement(**{**fields, "emitter": 1, "sizes": sizes, **changes})


def writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@given(st.lists(measurements, max_size=6))
def test_store_is_a_map(given_: list[Measurement]) -> None:
    """get returns the last that was put under a key, and None under any other."""
    last = {m.key: m for m in given_}
    with Store(":memory:") as store:
        for m in given_:
            store.put(m)
        assert {m.key: m for m in store} == last
        assert all(store.get(key) == m for key, m in last.items())
        assert store.get(("no", "such", "key", "", "", 9)) is None
        assert len(store) == len(last)


@given(st.lists(measurements, max_size=6))
def test_lines_carry_all(given_: list[Measurement]) -> None:
    """An export, imported into an empty store, gives an equal store."""
    file = io.StringIO()
    with Store(":memory:") as store, Store(":memory:") as other:
        for m in given_:
            store.put(m)
        assert store.export_lines(file) == len(store)
        file.seek(0)
        assert other.put_all(measurements_in(file)) == len(store)
        assert list(other) == list(store)


@pytest.mark.parametrize("field", ["operation", "sizes", "schedule", "device", "driver"])
def test_each_part_of_the_key_counts(field: str) -> None:
    """A measurement on another device, driver, .. is another measurement."""
    with Store(":memory:") as store:
        store.put(one(seconds=1.0))
        assert store.get(one(**{field: "other"}).key) is None
        assert store.get(one(emitter=2).key) is None
        assert store.get(one().key) is not None


def test_describe_separates_schedules() -> None:
    """Equal schedules have equal keys, and schedules that differ in one decision do not."""
    problem = Problem.of(matmul(), m=64, n=64, k=64)
    naive = Schedule.of(Simt(), LADDER["naive"])
    same = Schedule.of(Simt(), dict(sorted(LADDER["naive"].items())))
    assert describe(problem, naive) == describe(problem, same)
    assert describe(problem, naive) != describe(problem, naive.with_(tile_m=64))
    assert describe(problem, naive)[1] != describe(Problem.of(matmul(), m=65, n=64, k=64), naive)[1]


def test_eight_writers_lose_and_double_nothing(tmp_path: Path) -> None:
    """Processes that make and write one store at once: keys of their own, and all the same ones."""
    path = tmp_path / "store.db"
    running = [writer(path, name, 25) for name in (*"abcdef", "same", "same")]
    for process in running:
        process.communicate(timeout=120)
        assert process.returncode == 0
    with Store(path) as store:
        kept = [(m.schedule, int(m.sizes)) for m in store]
    every = {(name, i) for name in (*"abcdef", "same") for i in range(25)}
    assert sorted(kept) == sorted(every)


def test_killed_at_any_step_it_holds_all_that_was_told(tmp_path: Path) -> None:
    """Eight writers of one store; seven are killed after a random while, at whatever they do.

    What a writer said that it had put is there, with at most one more; the store opens, is whole
    by SQLite's own check, and the eighth writer noticed nothing.
    """
    path, pause = tmp_path / "store.db", np.random.default_rng(0)
    running = {name: writer(path, name, 10**6) for name in "abcdefg"}
    last = writer(path, "last", 60)
    said: dict[str, list[str]] = {}
    for name, process in running.items():
        time.sleep(float(pause.uniform(0, 0.5)))
        os.kill(process.pid, signal.SIGKILL)
        said[name] = process.communicate(timeout=60)[0].split()
    assert last.communicate(timeout=120)[0].split() == [str(i) for i in range(60)]
    said["last"] = [str(i) for i in range(60)]
    with Store(path) as store:
        assert store._db.execute("pragma integrity_check").fetchone() == ("ok",)
        kept: dict[str, set[int]] = {name: set() for name in said}
        for one_ in store:
            kept[one_.schedule].add(int(one_.sizes))
            assert one_.seconds == int(one_.sizes) + 1
    for name, lines in said.items():
        whole = {int(line) for line in lines}  # the last line of a killed one may be cut
        assert kept[name] == set(range(len(kept[name])))
        assert len(kept[name]) in range(len(whole), len(whole) + 2)


STOPPED = """
import os, signal, sqlite3, sys
from tinygpu.space.measurement import Measurement
from tinygpu.search.store import Store

class Stopped(sqlite3.Connection):
    left = int(sys.argv[2])

    def execute(self, sql, *values):
        for moment in "before", "after":
            if Stopped.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            Stopped.left -= 1
            if moment == "before":
                found = super().execute(sql, *values)
        return found

connect = sqlite3.connect
sqlite3.connect = lambda *a, **b: connect(*a, **b, factory=Stopped)
with Store(sys.argv[1]) as store:
    for i in range(3):
        store.put(Measurement(operation="o", sizes=str(i), schedule="x", device="d", driver="r",
                              emitter=1, seconds=float(i + 1)))
        print(i, flush=True)
"""


def test_killed_before_and_after_each_statement(tmp_path: Path) -> None:
    """Of the statements from the first, on a file that is not there, to the last put."""
    steps, finished = 0, False
    while not finished:
        path = tmp_path / f"{steps}.db"
        run = subprocess.run(
            [sys.executable, "-c", STOPPED, path, str(steps)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        finished = run.returncode == 0
        assert run.returncode in (0, -signal.SIGKILL), run.stderr
        said = [int(line) for line in run.stdout.split()]
        with Store(path) as store:
            kept = [int(m.sizes) for m in store]
            assert kept == list(range(len(kept)))
            assert len(said) <= len(kept) <= len(said) + 1
            store.put(one("after"))
            assert len(store) == len(kept) + 1
        steps += draws(2, 1)
    assert said == [0, 1, 2]
    assert steps > 20


def test_many_make_one_store_at_once(tmp_path: Path) -> None:
    """While one goes over to WAL, SQLite tells others at once that the file is locked."""

    def opened(path: Path) -> int:
        with Store(path) as store:
            return len(store)

    with ThreadPoolExecutor(6) as pool:
        for number in range(60):
            paths = [tmp_path / f"{number}.db"] * 6
            assert sum(pool.map(opened, paths)) == 0


class Busy(sqlite3.Connection):
    """A file that others take to WAL just now, twice."""

    left = 2

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if "journal_mode" in sql and self.left:
            self.left -= 1
            raise sqlite3.OperationalError("database is locked")
        return super().execute(sql, *values)


def test_it_waits_for_one_that_goes_over_to_wal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, connect = tmp_path / "store.db", sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **b: connect(*a, **b, factory=Busy))
    with Store(path) as store:
        assert len(store) == 0
    monkeypatch.setattr(stored, "_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(Busy, "left", 10**9)
    with pytest.raises(StoreError, match="database is locked"):
        Store(path)


def test_kill_loses_nothing_that_was_put(tmp_path: Path) -> None:
    """After SIGKILL the store opens, and holds at least every put that had returned."""
    path = tmp_path / "store.db"
    for name in ("first", "second"):
        process = writer(path, name, 10**6)
        assert process.stdout is not None
        seen = [int(process.stdout.readline()) for _ in range(20)]
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        with Store(path) as store:
            kept = {int(m.sizes) for m in store if m.schedule == name}
            assert kept == set(range(len(kept)))
            assert set(seen) <= kept
            store.put(one(name))


def test_a_reader_sees_what_another_put(tmp_path: Path) -> None:
    """A put is visible to a store that was open already."""
    with Store(tmp_path / "s.db") as left, Store(tmp_path / "s.db") as right:
        left.put(one(seconds=1.0))
        found = right.get(one().key)
        assert found is not None
        assert found.seconds == 1.0


def test_import_is_all_or_nothing() -> None:
    """A line that is no measurement leaves the store as it was."""
    good = one("new").to_json()
    for bad in ("{", "[]", "{}", good[:-1], good.replace('"device"', '"devices"')):
        with Store(":memory:") as store:
            store.put(one())
            with pytest.raises(StoreError, match=r"measurement: .* is none"):
                store.put_all(measurements_in(io.StringIO(f"{good}\n{bad}\n")))
            assert list(store) == [one()]
            store.put(one("after"))


def test_an_import_that_fails_midway_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it stays, and the store can be written again."""
    file = io.StringIO("".join(one(str(i)).to_json() + "\n" for i in range(3)))
    with Store(":memory:") as store:
        put = Store.put

        def failing(self: Store, measurement: Measurement) -> None:
            if measurement.sizes == "2":
                raise StoreError("no more")
            put(self, measurement)

        with monkeypatch.context() as patch:
            patch.setattr(Store, "put", failing)
            with pytest.raises(StoreError, match="no more"):
                store.put_all(measurements_in(file))
        assert len(store) == 0
        store.put(one())
        assert len(store) == 1


def test_errors_name_the_way_out(tmp_path: Path) -> None:
    """A store that cannot be used says why, in one line."""
    with pytest.raises(StoreError, match="a folder that you can write"):
        Store(tmp_path / "none" / "store.db")
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"not a database, but long enough to look at" * 100)
    with pytest.raises(StoreError, match="no store, or damaged"):
        Store(damaged)
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as other:
        other.execute("create table t (x)")
    other.close()
    with pytest.raises(StoreError, match="of another kind"):
        Store(foreign)
    for number in (0, 99):  # an older and a newer one: refused, and left as they are
        path = tmp_path / f"{number}.db"
        Store(path).close()
        with sqlite3.connect(path) as other:
            other.execute(f"pragma user_version = {number}")
        other.close()
        before = path.read_bytes()
        with pytest.raises(StoreError, match=rf"format {number}; .*with the tinygpu that wrote it"):
            Store(path)
        assert path.read_bytes() == before
    closed = Store(tmp_path / "closed.db")
    closed.close()
    with pytest.raises(StoreError, match="open it again"):
        closed.put(one())


def test_full_disk(tmp_path: Path) -> None:
    """A full disk is a StoreError, and what was kept stays."""
    with Store(tmp_path / "s.db") as store:
        store.put(one(seconds=2.0))
        pages = store._db.execute("pragma page_count").fetchone()[0]
        store._db.execute(f"pragma max_page_count = {pages}")
        many = "".join(one(str(i), reason="x" * 500).to_json() + "\n" for i in range(1000))
        with pytest.raises(StoreError, match="full; free some space"):
            store.put_all(measurements_in(io.StringIO(many)))
        assert len(store) == 1
        assert store.get(one().key) == one(seconds=2.0)


def test_damage_inside(tmp_path: Path) -> None:
    """A file damaged in the middle is a StoreError on reading, not a wrong answer."""
    path = tmp_path / "s.db"
    with Store(path) as store:
        for i in range(200):
            store.put(one(str(i), reason="x" * 200))
    content = bytearray(path.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    path.write_bytes(content)
    with Store(path) as store, pytest.raises(StoreError, match=r"damaged|is none"):
        list(store)


def test_a_get_is_quick(tmp_path: Path) -> None:
    """A get from a store of 1000 takes under 2 ms, far under a launch's compile."""
    with Store(":memory:") as store:
        for i in range(1000):
            store.put(one(str(i)))
        start = time.perf_counter()
        for i in range(1000):
            store.get(one(str(i)).key)
        assert time.perf_counter() - start < 2.0
