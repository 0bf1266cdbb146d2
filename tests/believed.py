"""Commands that believe what terms compute, for tests that ask something else."""

from __future__ import annotations

from functools import partial

import pytest

from tests.sample import SOAK
from tinygpu.meaning.identity import Meaning
from tinygpu.term.plan import Term

__all__ = ["believe"]


def believe(patch: pytest.MonkeyPatch) -> None:
    """Let commands believe that terms compute their operation, and their PTX too; not at a soak.

    That takes most of the time of a command that emits or searches.  Tests of ``computes``, of
    ``held`` and of commands without this ask it.
    """
    if not SOAK:
        patch.setattr("tinygpu.codegen.run.agreement.require_computes", _taken)
        patch.setattr("tinygpu.search.tuning.ranking.computed", partial(map, _taken))
        patch.setattr("tinygpu.search.tuning.climb._meanings", lambda *_: {})


def _taken(term: Term) -> Meaning:
    return Meaning(term, (dict.fromkeys(term.operation.axes, 1),), None)
