"""Texts that are nearly PTX: kernels with tokens lost, doubled, swapped or replaced."""

from __future__ import annotations

import random
import re

__all__ = ["mutated"]

_TOKEN = re.compile(r"\s+|[\w$%.:]+|.", re.DOTALL)
_ODD = (
    "0",
    "-1",
    "4294967295",
    "0x7fffffffffffffff",
    "3.5",
    "%nosuch",
    "{",
    "}",
    "[",
    "]",
    ";",
    ",",
    "@",
    ".sat",
    ".v4",
    ".b128",
    "_",
    "|",
    "0f7FC00000",
    "(",
    ")",
    "bra",
    "7000000000000",
    ".shared",
    "!",
    "1 << 70",
    "%tid.x",
    "%clock64",
    "ret",
    "\ufeff",
    "\x00",
    "é",
    ".func",
)


def mutated(text: str, seed: int) -> str:
    """Return the text with one to four changes, the same for the same seed."""
    draw = random.Random(seed)
    tokens = _TOKEN.findall(text)
    for _ in range(draw.randint(1, 4)):
        at, how = draw.randrange(len(tokens)), draw.randrange(6)
        if how == 0:
            del tokens[at]
        elif how == 1:
            tokens.insert(at, draw.choice(tokens))
        elif how == 2:
            tokens[at] = draw.choice(_ODD)
        elif how == 3:
            other = draw.randrange(len(tokens))
            tokens[at], tokens[other] = tokens[other], tokens[at]
        elif how == 4:
            tokens[at] = re.sub(r"\d+", lambda m: str(draw.choice((0, 3, 33, 1 << 20))), tokens[at])
        else:
            parts = tokens[at].split(".")
            draw.shuffle(parts)
            tokens[at] = ".".join(parts)
        tokens = tokens or [" "]
    return "".join(tokens)
