"""The store: every measurement, in one SQLite file.

A measurement is kept under its key (``tinygpu/space/measurement.py``): measured once, it is not
measured again, so a search that was stopped goes on where it was.  The file is in WAL mode and
every ``put`` is one transaction that reaches the disk before it returns: several processes may
write at once, and one that is killed loses at most the measurement that it was about to write.
``export_lines`` and ``measurements_in`` carry measurements between stores as JSON lines, for replay
on a machine without a GPU.

>>> import tempfile
>>> from tinygpu.space.measurement import Measurement
>>> one = Measurement(operation="{}", sizes="{}", schedule="{}", device="H200", driver="580",
...                   emitter=1, seconds=1e-3)
>>> with tempfile.TemporaryDirectory() as folder, Store(Path(folder, "store.db")) as store:
...     store.put(one)
...     store.get(one.key).seconds, len(store)
(0.001, 1)

Source: SQLite, "Write-Ahead Logging" and "Atomic Commit in SQLite".
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TextIO, TypeVar

from tinygpu.errors import StoreError
from tinygpu.space.measurement import Key, Measurement

__all__ = ["FORMAT", "Store", "measurements_in"]

FORMAT = 1
"""The version of the file, in its ``user_version``."""

_APPLICATION = 0x74475055  # "tGPU": the file's application_id
_WAIT_SECONDS = 60.0
_KEY = ("operation", "sizes", "schedule", "device", "driver", "emitter")
_CREATE = f"""
create table if not exists measurement (
  operation text not null, sizes text not null, schedule text not null,
  device text not null, driver text not null, emitter integer not null,
  record text not null, primary key ({", ".join(_KEY)})) without rowid
"""
_WHERE = " and ".join(f"{name} = ?" for name in _KEY)
T = TypeVar("T")


def measurements_in(file: TextIO) -> list[Measurement]:
    """Return the measurements of ``export_lines``.

    Raises StoreError for a line that is no measurement.
    """
    rows = []
    for number, line in enumerate(file, 1):
        if line.strip():
            try:
                rows.append(Measurement.from_json(line))
            except StoreError as error:
                raise StoreError(f"line {number}: {error}") from None
    return rows


class Store(AbstractContextManager["Store"]):
    """A store file, made if there is none; a context manager that closes it."""

    def __init__(self, path: Path | str) -> None:
        """Open it.  Raises StoreError for a file that is no store, or that cannot be written."""
        self.path = Path(path)
        try:
            self._db = sqlite3.connect(path, timeout=_WAIT_SECONDS, isolation_level=None)
        except sqlite3.Error as error:
            raise self._error(error) from None
        try:
            self._run(self._open)
        except StoreError:
            self._db.close()
            raise

    def get(self, key: Key) -> Measurement | None:
        """Return what is kept under a key.  Raises StoreError if the file cannot be read."""
        query = f"select record from measurement where {_WHERE}"
        row = self._run(lambda: self._db.execute(query, key).fetchone())
        return None if row is None else self._read(row[0])

    def put(self, measurement: Measurement) -> None:
        """Keep a measurement, instead of an earlier one of its key.

        Raises StoreError if it cannot be written; what was kept before stays.
        """
        row = (*measurement.key, measurement.to_json())
        places = ", ".join("?" * len(row))
        command = f"insert or replace into measurement values ({places})"
        self._run(lambda: self._db.execute(command, row))

    def __iter__(self) -> Iterator[Measurement]:
        """Yield all measurements, in the order of their keys."""
        query = f"select record from measurement order by {', '.join(_KEY)}"
        rows = self._run(lambda: self._db.execute(query).fetchall())
        return (self._read(row[0]) for row in rows)

    def __len__(self) -> int:
        """Return how many measurements there are."""
        query = "select count(*) from measurement"
        return int(self._run(lambda: self._db.execute(query).fetchone())[0])

    def export_lines(self, file: TextIO) -> int:
        """Write all measurements, one JSON object a line; return how many."""
        lines = [one.to_json() + "\n" for one in self]
        file.writelines(lines)
        return len(lines)

    def put_all(self, rows: Sequence[Measurement]) -> int:
        """Keep all measurements, or none of them; return how many."""
        self._run(lambda: self._db.execute("begin immediate"))
        try:
            for one in rows:
                self.put(one)
        except StoreError:
            if self._db.in_transaction:
                self._db.execute("rollback")
            raise
        self._run(lambda: self._db.execute("commit"))
        return len(rows)

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        self._db.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        execute = self._db.execute
        # first the tables: another process may be making the file, and writes all at once
        tables = execute("select count(*) from sqlite_master").fetchone()[0]
        application = execute("pragma application_id").fetchone()[0]
        version = execute("pragma user_version").fetchone()[0]
        if tables and application != _APPLICATION:
            raise StoreError(
                f"store {self.path}: an SQLite file of another kind; give another path"
            )
        if tables and version != FORMAT:
            raise StoreError(
                f"store {self.path}: format {version}; this tinygpu reads format {FORMAT}: give "
                "another path, or export it with the tinygpu that wrote it"
            )
        self._to_wal()
        execute("pragma synchronous = full")
        if not tables:
            execute("begin immediate")
            execute(f"pragma application_id = {_APPLICATION}")
            execute(f"pragma user_version = {FORMAT}")
            execute(_CREATE)
            execute("commit")

    def _to_wal(self) -> None:
        """Go over to WAL; while another process does, SQLite fails at once instead of waiting."""
        end = time.monotonic() + _WAIT_SECONDS
        while True:
            try:
                self._db.execute("pragma journal_mode = wal")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > end:
                    raise
            time.sleep(0.01)

    def _read(self, line: str) -> Measurement:
        try:
            return Measurement.from_json(line)
        except StoreError as error:
            raise StoreError(f"store {self.path}: {error}") from None

    def _run(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except sqlite3.Error as error:
            raise self._error(error) from None

    def _error(self, error: sqlite3.Error) -> StoreError:
        text = str(error)
        way = "give a path in a folder that you can write"
        if "malformed" in text or "not a database" in text:
            way = "it is no store, or damaged: move it away, and import an export of it"
        elif "full" in text:
            way = "free some space; what was written before is kept"
        elif "locked" in text or "busy" in text:
            way = f"another process held it for {_WAIT_SECONDS:.0f} s; stop that one"
        elif "closed" in text:
            way = "open it again"
        return StoreError(f"store {self.path}: {text}; {way}")
