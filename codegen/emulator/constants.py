"""Constant expressions: integers and the operators of C, in 64 bits.

>>> constant("(1 + 2 * 3)"), constant("-7 / 2"), constant("1 << 4 | 3"), constant("2 > 1 ? 8 : 9")
(7, -3, 19, 8)
>>> constant("WARP_SZ * 2"), constant("!0 + ~0U"), constant("%r1") is None
(64, 0, True)

Source: PTX ISA 9.0, section 4.5 (constant expressions).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

__all__ = ["constant"]

_TOKEN = re.compile(
    r"\s*(0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+U?|WARP_SZ|\.[su]64|<<|>>|[<>=!]=|&&|\|\||[-+*/%&|^~!<>?:()])"
)


def _divided(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


_LEVELS: tuple[Mapping[str, Callable[[int, int], int]], ...] = (
    {"||": lambda a, b: int(bool(a or b))},
    {"&&": lambda a, b: int(bool(a and b))},
    {"|": operator.or_},
    {"^": operator.xor},
    {"&": operator.and_},
    {"==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b)},
    {"<": lambda a, b: int(a < b), "<=": lambda a, b: int(a <= b),
     ">": lambda a, b: int(a > b), ">=": lambda a, b: int(a >= b)},
    {"<<": lambda a, b: a << (b & 63), ">>": lambda a, b: a >> (b & 63)},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": _divided, "%": lambda a, b: a - b * _divided(a, b)},
)  # fmt: skip


def constant(text: str) -> int | None:
    """Return the value of an integer constant expression, None if the text is none."""
    tokens, at = [], 0
    while at < len(text.rstrip()):
        found = _TOKEN.match(text, at)
        if not found:
            return None
        tokens.append(found.group(1))
        at = found.end()
    if not tokens or len(tokens) > 256:
        return None
    try:
        value = _choice(tokens)
    except (IndexError, ValueError, ZeroDivisionError):
        return None
    return None if tokens else value


def _wrapped(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _choice(tokens: list[str]) -> int:
    value = _binary(tokens, 0)
    if tokens[:1] != ["?"]:
        return value
    tokens.pop(0)
    yes = _choice(tokens)
    if tokens.pop(0) != ":":
        raise ValueError("a choice without its second part")
    no = _choice(tokens)
    return yes if value else no


def _binary(tokens: list[str], level: int) -> int:
    if level == len(_LEVELS):
        return _unary(tokens)
    value = _binary(tokens, level + 1)
    while tokens and tokens[0] in _LEVELS[level]:
        value = _wrapped(_LEVELS[level][tokens.pop(0)](value, _binary(tokens, level + 1)))
    return value


def _unary(tokens: list[str]) -> int:
    token = tokens.pop(0)
    if token == "(":
        if tokens[0] in (".s64", ".u64"):
            tokens.pop(0)
            if tokens.pop(0) != ")":
                raise ValueError("a cast without its end")
            return _unary(tokens)
        value = _choice(tokens)
        if tokens.pop(0) != ")":
            raise ValueError("a parenthesis without its end")
        return value
    signs: Mapping[str, Callable[[int], int]] = {
        "-": operator.neg, "+": operator.pos, "~": operator.invert, "!": lambda a: int(not a),
    }  # fmt: skip
    if token in signs:
        return _wrapped(signs[token](_unary(tokens)))
    if token == "WARP_SZ":
        return 32
    digits = token.rstrip("U")
    return int(digits, 8) if re.fullmatch(r"0[0-7]+", digits) else int(digits, 0)
