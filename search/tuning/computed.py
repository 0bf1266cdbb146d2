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
from tinygpu.meaning.identity import Meaning, unlaunched
from tinygpu.term.plan import Term

__all__ = ["computed"]

_programs: Sequence[Term] = ()
"""In a copy: what it is asked about."""


def computed(programs: Sequence[Term]) -> Iterator[Meaning]:
    """Yield what each program computes, in order.  Raises what ``computes`` does.

    Programs that differ in how they are launched alone are asked once.
    """
    alike = [unlaunched(program) for program in programs]
    once = dict.fromkeys(alike)
    many = min(cores(), len(once)) if hasattr(os, "fork") else 1
    if many == 1:
        yield from map(computes, programs)
        return
    left = iter(once)
    with multiprocessing.get_context("fork").Pool(many, _begin, (tuple(once),)) as pool:
        asked = pool.imap(_asked, range(len(once)))
        known = {}
        for program, one in zip(programs, alike, strict=True):
            while one not in known:
                known[next(left)] = next(asked)
            found = known[one]
            yield computes(program) if found is None else Meaning(program=program, **found)


def _begin(programs: Sequence[Term]) -> None:
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
