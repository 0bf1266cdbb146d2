"""What programs compute, asked on all cores: each has a copy of this process.

A copy has the programs and the machine's own code already, so that nothing is loaded or sent; it
returns what it found.

Source: fork(2).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from tinygpu.codegen.run.agreement import computes
from tinygpu.cores import cores
from tinygpu.meaning.identity import Meaning
from tinygpu.term.program import Program

__all__ = ["computed"]

_programs: Sequence[Program] = ()
"""In a copy: what it is asked about."""


def computed(programs: Sequence[Program]) -> Iterator[Meaning]:
    """Yield what each program computes, in order.  Raises what ``computes`` does."""
    many = min(cores(), len(programs)) if hasattr(os, "fork") else 1
    if many == 1:
        yield from map(computes, programs)
        return
    with multiprocessing.get_context("fork").Pool(many, _begin, (programs,)) as pool:
        found = pool.imap(_asked, range(len(programs)))
        for program, known in zip(programs, found, strict=True):
            yield computes(program) if known is None else Meaning(program=program, **known)


def _begin(programs: Sequence[Program]) -> None:
    """Keep the programs; Ctrl-C is for the first process, which ends its copies."""
    global _programs
    _programs = programs
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _asked(number: int) -> dict[str, Any] | None:
    """Return what was found but for the program, or None where the first process has to ask.

    There an error has its traceback, which tells whose code it is.
    """
    try:
        found = computes(_programs[number])
    except Exception:
        return None
    return {f.name: getattr(found, f.name) for f in fields(found) if f.name != "program"}
