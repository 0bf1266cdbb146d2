"""Edits under the checker: ``python -m benchmarks.certified_edits --pairs N --certificates N``.

By all cores that the process may use, until ``--seconds`` are over, with a row a pair in ``--out``.

Pairs of edits of each protocol (drop, double, move, shift an index, change a count), one a
protocol by turns: how many are accepted, refused, not certified.  The interpreter runs what is
accepted, at small sizes in drawn orders; what it finds of the order is listed, and is a fault of
the checker.  With the certificate of the protocol as it was, bound to the edited term, the same.
Certificates edited at random, of terms that are illegal: none may be accepted.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.each_core import rows
from tests.edited import (
    Edited,
    edited_certificate,
    edited_pair,
    edits_of,
    faults_of,
    protocols,
    ruling,
    wrong,
)
from tinygpu.checker.make import certified
from tinygpu.checker.written import verified, written
from tinygpu.term.text import key_of, text_of

__all__ = ["main"]


@cache
def _certificate(number: int) -> str:
    term = protocols()[number].term
    certificate, why = certified(term)
    assert certificate is not None, str(why)
    return written(term, certificate)


def rebound(edited: Edited) -> str:
    """Return the certificate of the term as it was, bound to the edited one."""
    tree = json.loads(_certificate(edited.number))
    return json.dumps({**tree, "term": key_of(text_of(edited.term))})


def judge(job: tuple[int, int]) -> list[dict[str, Any]]:
    """Return the row of a pair of edits, of a protocol's number and a seed."""
    number, seed = job
    pair = edited_pair(random.Random(seed).randrange, number)
    said = ruling(pair.term)
    fixed = verified(pair.term, rebound(pair)).accepted
    found = faults_of(pair) if said.accepted or fixed else []
    name = protocols()[number].term.name
    return [{
        "protocol": name, "seed": seed, "edits": pair.names, "word": said.word, "fixed": fixed,
        "line": said.line[:160], "faults": [str(fault) for fault in found[:1]],
    }]  # fmt: skip


def pairs(many: int, seed: int, seconds: float, out: Path | None) -> None:
    """Print how pairs of edits fare."""
    words: Counter[str] = Counter()
    start = time.perf_counter()
    jobs = ((i % len(protocols()), seed * 10**9 + i) for i in range(many))
    wrong_ones: list[str] = []
    for row in rows(judge, jobs, seconds=seconds, out=out):
        words["drawn"] += 1
        words[row["word"]] += 1
        words["accepted with the protocol's own certificate"] += row["fixed"]
        words["interpreted"] += row["fixed"] or row["word"] == "accepted"
        if row["faults"]:
            wrong_ones.append(f"{row['protocol']}: {row['edits']}: {row['faults'][0]}")
    took = time.perf_counter() - start
    counts = ", ".join(f"{n} {word}" for word, n in sorted(words.items()))
    every = sum(len(edits_of(p.term)) ** 2 for p in protocols())
    print(f"pairs of edits, of about {every}: {counts}; {took:.0f} s")
    print(f"{len(wrong_ones)} accepted that the interpreter refutes", *wrong_ones, sep="\n  ")


def certificates(many: int, number: random.Random) -> None:
    """Print how edited certificates fare."""
    words: Counter[str] = Counter()
    start = time.perf_counter()
    for i in range(many):
        case = wrong()[i % len(wrong())]
        words[verified(case.program, edited_certificate(number.randrange, case)).word] += 1
    counts = ", ".join(f"{n} {word}" for word, n in sorted(words.items()))
    print(f"{many} edited certificates: {counts}; {time.perf_counter() - start:.0f} s")


def main(words: list[str] | None = None) -> None:
    """Print counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--certificates", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=86400)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(words)
    pairs(given.pairs, given.seed, given.seconds, given.out)
    certificates(given.certificates, random.Random(given.seed))


if __name__ == "__main__":
    main()
