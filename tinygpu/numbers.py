"""Numbers: the names of their types, of arrays of them and of what is true of them.

An expression is one and the same for one schedule, where its numbers are ints, and over a space of
schedules, where they are arrays; so nothing that computes with a ``Number`` branches on one.  The
fields of a term say ``int``, as a term is one schedule's; over a space they hold arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Booleans", "Change", "Floats", "Integers", "Number", "Truth"]

Array: TypeAlias = NDArray[Any]
"""An array whose elements may be of any type."""
Integers: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Booleans: TypeAlias = NDArray[np.bool_]

Number: TypeAlias = float | Array
"""A number of one schedule, or those of a space's; an int, where nothing else is said."""
Truth: TypeAlias = bool | Booleans
"""Whether something holds in one schedule, or in each of a space's."""
Change: TypeAlias = Callable[[Any], Any]
"""What is made of a number, or of one of a term."""
