"""Why the graph may reject what no seed makes fail, and why a wrong text may show nothing.

Both are told apart from what would be a fault of a judge: whatever has no category here is
*unexplained*, and the corpus is to have none of it.

>>> of_text("line 88 (opening): drop tcgen05.fence::before_thread_sync;", one_tile=False)
'nothing yet'

Source: ``docs/model-concurrency.md``, section "Against the interpreter".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["REASONS", "UNEXPLAINED", "of_term", "of_text"]

UNEXPLAINED = "unexplained"
REASONS: Mapping[str, str] = {
    "a name": "an arrival is moved by a whole turn of its ring: no instruction names a phase, so "
    "the code is the same; the graph takes the term's word",
    "nobody waits": "an arrival too many, too few or elsewhere, at a phase that nobody waits for "
    "in so short a run",
    "enough": "another arrival than the term says ends a phase that is waited for, and comes no "
    "sooner",
    "left": "who has arrived may leave, and a barrier does not wait for those who have left; what "
    "comes behind it is ordered otherwise",
    "nothing yet": "nobody has used tensor memory before: alloc tells of itself",
    "two fences": "each of the two publishes the barriers' making; without both it is found",
    "lanes": "a warp's lanes arrive together, so that one arrival fewer ends the phase in the same "
    "instruction; a whole warp fewer is found",
    "one tile": "an accumulator is used once, so that nobody waits for its release, and products "
    "follow no one else's",
    "first chunks": "what waits for the former use of a chunk's buffer waits for nothing in the "
    "first chunks of the one tile; in the later ones it is found",
}
_TEXTS = (
    (r"\(opening\): drop tcgen05\.fence", "nothing yet"),
    (r"\(opening\): drop fence\.", "two fences"),
    (r": drop (bar\.sync 0|barrier\.cluster\.wait)", "left"),
    (r": count- ", "lanes"),
)
_OF_ONE_TILE = (
    (r"mbarrier\.|tcgen05\.fence::after", "one tile"),
    (r": drop (cp\.async\.bulk\.wait_group\.read|bar\.sync [1-9])", "first chunks"),
)


def of_term(line: str, stages: Mapping[str, int]) -> str:
    """Return the category of a conservative rejection, as ``async_corpus`` tells of it.

    ``stages`` of the barriers, by their names.

    >>> of_term("phase+ arrive full@(k) of producer [1, 2]: balance: phase 0 ..", {"full": 2})
    'a name'
    """
    change, why = line.split("]: ", 1)
    kind, statement = change.split(" ", 1)
    if "barrier.cluster" in statement and why.startswith("deadlock"):
        return "left"
    if not why.startswith("balance"):
        return UNEXPLAINED
    barriers = re.findall(r"(\w+)@", statement)
    turned = bool(barriers) and stages.get(barriers[-1]) == 1 and kind in ("later", "sooner")
    if turned or kind in ("phase+", "phase-"):
        return "a name"
    return "enough" if ": wait " in why else "nobody waits"


def of_text(name: str, *, one_tile: bool) -> str:
    """Return the category of a mutant's name, of a text that shows nothing."""
    found = next((kind for pattern, kind in _TEXTS if re.search(pattern, name)), UNEXPLAINED)
    if found == UNEXPLAINED and one_tile:
        return next((kind for pattern, kind in _OF_ONE_TILE if re.search(pattern, name)), found)
    return found
