"""Why a rejection may have no failure, and a wrong text no finding: the categories of the corpus."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["REASONS", "category"]

REASONS: Mapping[str, str] = {}


def category(line: str) -> str:
    """Return the category of a line of a report."""
    return next((name for name in REASONS if name in line), "unexplained")
