"""The command line, from its first import on: ``python -m tinygpu`` and the script ``tinygpu``."""

from __future__ import annotations

import os
import signal
from types import FrameType

__all__ = ["main"]


def main() -> None:
    """Run the command line.

    Ctrl-C raises KeyboardInterrupt within a command alone: while modules are loaded or Python
    ends, some code would show its traceback and some would swallow it, and nothing is to be saved.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads spin between small products
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeded:  # a shell lets what runs in its background ignore it
        signal.signal(signal.SIGINT, _stop)
    from typer.main import get_command

    from tinygpu.cli import app

    command = get_command(app)
    try:
        if heeded:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        command()
    except KeyboardInterrupt:
        _stop()
    finally:
        if heeded:
            signal.signal(signal.SIGINT, _stop)


def _stop(number: int = signal.SIGINT, frame: FrameType | None = None) -> None:
    os.write(2, b"error: interrupted; files written before are whole\n")
    os._exit(130)


if __name__ == "__main__":
    main()
