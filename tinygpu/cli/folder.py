"""Folders of results: one process at a time writes into one, and does not replace another's.

A process that writes holds a POSIX lock on ``.tinygpu.lock``, in which it says who it is.  The
kernel lets go of the lock when the process ends, however it ends, so a file that is left behind
locks nobody out; child processes do not hold it.

Source: POSIX, "fcntl", F_SETLK.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from tinygpu.document import parsed
from tinygpu.errors import DocumentError, FolderError

__all__ = ["claimed", "require_same"]

_LOCK = ".tinygpu.lock"
_PART = ".part"  # of a file that is being written (``console.write``)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold a folder, made if there is none; remove what an interrupted write left in it.

    A folder that was made, and into which nothing was written, is removed.

    Raises FolderError, which names the process that holds it, if another one does.
    """
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _LOCK
    with ExitStack() as stack:
        if made:
            stack.callback(_without, folder)
        file = stack.enter_context(_locked(path))
        me = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now().astimezone().isoformat(sep=" ", timespec="seconds"),
        }
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps(me).encode(), 0)
        for left in folder.rglob(f".*{_PART}"):
            left.unlink(missing_ok=True)
        yield


def _without(folder: Path) -> None:
    """Remove a folder into which nothing was written."""
    with suppress(OSError):
        folder.rmdir()


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Lock a file, made if there is none; it is removed before the lock is let go of."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            who = _holder(path)
            os.close(file)
            raise FolderError(
                f"{path.parent}: {who} writes into it; wait for it or stop it, or give another "
                "folder"
            ) from None
        except OSError:
            os.close(file)
            raise
        if path.exists() and os.path.samestat(os.fstat(file), path.stat()):
            break
        os.close(file)  # who held it has removed it meanwhile
    try:
        yield file
    finally:
        path.unlink(missing_ok=True)
        os.close(file)


def _holder(path: Path) -> str:
    """Say who holds a lock."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        return f"process {tree['pid']} on {tree['host']}, since {tree['since']},"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def require_same(folder: Path, asked: Mapping[str, Any]) -> None:
    """Raise FolderError if the folder has the result of another search than what is asked."""
    path = folder / "search.json"
    if not path.is_file() and not (folder / "report.html").is_file():
        return
    try:
        tree = parsed(path.read_text(encoding="utf-8"))
        kept = tree.get("asked") if isinstance(tree, dict) else None
    except (DocumentError, ValueError, FileNotFoundError):
        kept = None
    if kept == asked:
        return
    what = "another search"
    if isinstance(kept, dict):
        differing = [name for name in asked if kept.get(name) != asked[name]]
        what = f"a search of which {', '.join(differing)} differ{'s' * (len(differing) == 1)}"
    raise FolderError(f"{folder}: it has the result of {what}; give another folder, or --replace")
