"""What a check says: accepted, refused at a line, or not certified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NoReturn

__all__ = ["RefusedError", "Ruling", "UncertifiedError", "refuse", "uncertified"]

Word = Literal["accepted", "refused", "not certified"]


@dataclass(frozen=True, slots=True)
class Ruling:
    """The result of a check.

    ``line``: why it is not accepted, or what a meaning is; a refusal names the rule, the agent, the
    statement and the node.  ``nodes``: invariants checked.  ``believed``: instructions that are the
    user's own.
    """

    word: Word
    line: str = ""
    nodes: int = 0
    believed: tuple[str, ...] = ()

    @property
    def accepted(self) -> bool:
        """Whether the term is proved to be in order."""
        return self.word == "accepted"

    def __str__(self) -> str:
        if not self.accepted:
            return f"{self.word}: {self.line}"
        more = f"; believed: {', '.join(self.believed)}" if self.believed else ""
        what = self.line or f"{self.nodes} invariants hold for all trips"
        return f"accepted: {what}{more}"


class RefusedError(Exception):
    """A rule does not hold."""


class UncertifiedError(Exception):
    """The term is of a class that the checker does not have."""


def refuse(*parts: object) -> NoReturn:
    """End the check: a rule does not hold."""
    raise RefusedError(" ".join(map(str, parts)))


def uncertified(*parts: object) -> NoReturn:
    """End the check: the term is of a class that is not certified."""
    raise UncertifiedError(" ".join(map(str, parts)))
