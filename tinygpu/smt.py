"""z3, which loads on first use: it takes a fifth of a second; the names of its types."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from z3 import ArithRef, BoolRef, ExprRef, ModelRef

__all__ = ["ArithRef", "BoolRef", "ExprRef", "ModelRef", "z3_module"]


def z3_module() -> ModuleType:
    """Return z3."""
    import z3

    module: ModuleType = z3
    return module
