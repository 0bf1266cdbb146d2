"""What the checker believes of PTX, and which fields of a term it reads.

``TABLE`` says of each instruction where it reads and writes, who issues it, when it is done and
through which proxy it touches shared memory.  It is written from PTX's text, not from
``tinygpu.isa``: where the two differ the term is not certified.

    now         done for its thread when issued: what follows in the thread's order sees it
    copied      done for its thread at a ``cp.async.wait_group`` that covers its group
    stored      its source is read at its thread's ``cp.async.bulk.wait_group``, also with ``.read``
    landed      done for who waits for the phase at which its bytes are counted
    multiplied  done for who executes a ``wgmma.wait_group`` that covers its group
    taken       done for its thread at a ``tcgen05.wait::ld``
    put         done for its thread at a ``tcgen05.wait::st``
    committed   done for who waits for the phase at which a later ``tcgen05.commit`` arrives

``FIELDS`` says of each field of each part of a term what becomes of it: it is read ("order"), or it
can change neither order nor which value is read, and then the entry says why.  A part that has
another field than these is not certified.

Source: PTX ISA 9: 9.7.9.25.3 (cp.async), 9.7.9.25.5 (cp.async.bulk.tensor), 9.7.13.15 (mbarrier),
9.7.15 (wgmma), 9.7.16 (tcgen05), 9.7.13.4 (fence.proxy), 8 (memory consistency model).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal

from tinygpu.checker.outcome import refuse, uncertified
from tinygpu.term.program import Access, Do, Program, walk

__all__ = [
    "ALIGNED", "ARRIVALS", "FENCES", "FIELDS", "GROUPS", "TABLE", "UNCOMMITTED", "Entry",
    "entry_of", "require_fields", "require_types",
]  # fmt: skip

Done = Literal["now", "copied", "stored", "landed", "multiplied", "taken", "put", "committed"]
Types = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """An instruction.

    ``types``: (read, written), none: any type, the same on both sides.  ``makes``: each value is
    moved, an operator is applied to a thread's own values, or products are added to the third
    operand; "": something else.  ``tensor``: it is ordered with what other threads do by a
    ``tcgen05.fence`` alone.  ``ahead``: it is done before what its thread adds later.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    done: Done = "now"
    issuer: Literal["thread", "warp", "warpgroup", "one"] = "thread"
    proxy: Literal["generic", "async"] = "generic"
    types: Types = ()
    tensor: bool = False
    ahead: bool = False
    makes: Literal["moved", "applied", "products", ""] = ""

    @property
    def adds(self) -> bool:
        """Whether its third operand is what it adds to, of the type that it writes."""
        return self.makes == "products"


def _same(*types: str) -> Types:
    return tuple((one, one) for one in types)


_R, _S, _G, _T = ("registers",), ("smem",), ("gmem",), ("tmem",)
_FLOATS = ("f64", "f32", "f16", "bf16")
TABLE: Mapping[str, Entry] = {
    "ld.global": Entry(_G, _R, makes="moved"),
    "st.global": Entry(_R, _G, makes="moved"),
    "red.global": Entry(_R, _G, types=_same(*_FLOATS), makes="moved"),
    "ld.shared": Entry(_S, _R, makes="moved"),
    "st.shared": Entry(_R, _S, makes="moved"),
    "fma": Entry(_R, _R, types=_same("f32", "f64"), makes="applied"),
    "alu": Entry(_R, _R, types=_same("f32", "f64"), makes="applied"),
    "mufu": Entry(_R, _R, types=_same("f32"), makes="applied"),
    "cvt": Entry(
        _R, _R, types=(*((a, b) for a in _FLOATS for b in _FLOATS), ("f32", "e4m3")),
        makes="moved",
    ),
    "mov": Entry((), _R, makes="moved"),
    "shfl.sync": Entry(_R, _R, types=_same("f32", "tf32")),
    "ldmatrix": Entry(_S, _R, issuer="warp", makes="moved"),
    "stmatrix": Entry(_R, _S, issuer="warp", types=_same("bf16", "f16"), makes="moved"),
    "mma.sync": Entry(
        _R, _R, issuer="warp", types=(("f16", "f32"), ("bf16", "f32"), ("tf32", "f32")),
        makes="products",
    ),
    "cp.async": Entry(_G, _S, "copied", makes="moved"),
    "cp.async.bulk.tensor": Entry(_G, _S, "landed", "one", "async", makes="moved"),
    "cp.async.bulk.tensor.global": Entry(_S, _G, "stored", "one", "async", makes="moved"),
    "wgmma": Entry(
        (*_S, *_R), _R, "multiplied", "warpgroup", "async",
        (("bf16", "f32"), ("f16", "f32"), ("e4m3", "f32")), makes="products",
    ),
    "tcgen05.mma": Entry(
        (*_S, *_T), _T, "committed", "one", "async",
        tuple((one, "f32") for one in ("f16", "bf16", "tf32", "e4m3", "e5m2")),
        tensor=True, makes="products",
    ),
    "tcgen05.cp": Entry(
        _S, _T, "committed", "one", "async", tensor=True, ahead=True, makes="moved"
    ),
    "tcgen05.ld": Entry(
        _T, _R, "taken", "warpgroup", types=_same("f32", "tf32"), tensor=True, makes="moved"
    ),
    "tcgen05.st": Entry(
        _R, _T, "put", "warpgroup", types=_same("f32", "tf32"), tensor=True, makes="moved"
    ),
}  # fmt: skip

_COMPLETION: Mapping[str, tuple[Done, ...]] = {
    "at_once": ("now",), "scoreboard": ("now",), "commit_group": ("copied",),
    "bulk_group": ("stored",), "mbarrier": ("landed",), "wgmma_group": ("multiplied",),
    "tcgen05_wait": ("taken", "put"), "tcgen05_commit": ("committed",),
}  # fmt: skip
"""How a term's instruction names what the table calls otherwise."""
GROUPS: Mapping[str, Done] = {
    "cp.async": "copied", "bulk": "stored", "wgmma": "multiplied", "tcgen05.ld": "taken",
    "tcgen05.st": "put",
}  # fmt: skip
"""What a term's groups are groups of."""
UNCOMMITTED = frozenset({"taken", "put"})
"""What is waited for without a commit."""
FENCES: Mapping[str, str] = {
    "wgmma": "registers", "proxy.async": "proxy", "tcgen05.before": "before",
    "tcgen05.after": "after",
}  # fmt: skip
"""What a term's fences order."""
ARRIVALS = frozenset({"tcgen05"})
"""After what an arrival may come: what its thread commits."""
ALIGNED = frozenset({"wgmma", "tcgen05.ld", "tcgen05.st"})
"""Groups and fences for which all threads of a warp come together (``.sync.aligned``)."""


def entry_of(do: Do) -> tuple[Entry, bool]:
    """Return a statement's entry, and whether the instruction is the user's own.

    One's own is believed to be done at once and to do what its fields say.
    """
    how = do.instruction
    own = how.lower is not None or how.meaning is not None or how.name not in TABLE
    done = _COMPLETION.get(how.completion, ())
    if own:
        if "now" not in done or how.issuer not in ("thread", "warp"):
            uncertified(f"{how.name} is the user's own and is not done at once")
        return Entry(how.reads, how.writes, "now", how.issuer, types=how.types), True
    entry = TABLE[how.name]
    given = (how.reads, how.writes, how.issuer)
    if given != (entry.reads, entry.writes, entry.issuer) or entry.done not in done:
        uncertified(f"{how.name} is another instruction than PTX's, as the table has it")
    return entry, False


def require_types(do: Do, entry: Entry) -> None:
    """Refuse a statement whose operands' types its instruction does not take."""
    to = do.write.buffer
    given = [r.buffer for r in do.reads if isinstance(r, Access)]
    sums = given[2:] if entry.adds else []
    factors = given[: len(given) - len(sums)]
    for one in factors:
        pair = (one.dtype, to.dtype)
        if (pair not in entry.types) if entry.types else (one.dtype != to.dtype):
            refuse(f"types: {do}: {one.name} is {one.dtype} and {to.name} {to.dtype}")
        if one.dtype != factors[0].dtype:
            refuse(f"types: {do}: {one.name} is {one.dtype} and not {factors[0].dtype}")
    for one in sums:
        if one.dtype != to.dtype:
            refuse(f"types: {do}: {one.name} is {one.dtype} and {to.name} {to.dtype}")
    if not factors and entry.types and all(to.dtype != written for _, written in entry.types):
        refuse(f"types: {do}: {to.name} is {to.dtype}")


_ORDER = "order"
_VALUE = "which number it is, not when"
_LAUNCH = "which CTA does what, not in which order a CTA does it"
FIELDS: Mapping[str, Mapping[str, str]] = {
    "Program": {
        "name": "a name", "operation": _VALUE, "buffers": _ORDER, "parameters": _ORDER,
        "grid": _ORDER, "roles": _ORDER, "raster": _LAUNCH, "specialised": _LAUNCH,
        "zeroed": _VALUE, "addressing": "how an address is computed", "guards": _VALUE,
        "ctas_per_sm": "a limit of registers", "at_most": _VALUE, "barriers": _ORDER,
        "cluster": _ORDER, "persistent": _ORDER, "early": "the launch, before the first statement",
        "snake": _LAUNCH, "zigzag": _LAUNCH,
    },
    "Role": {
        "name": _ORDER, "threads": _ORDER, "body": _ORDER, "copies": _ORDER, "copy": _ORDER,
        "registers": "setmaxnreg: resources, a law",
    },
    "Axis": {"var": _ORDER, "extent": _LAUNCH, "down": _LAUNCH},
    "Buffer": {
        "name": _ORDER, "level": _ORDER, "dtype": _ORDER, "shape": _ORDER, "stride": _ORDER,
        "stages": _ORDER, "stage_elements": _ORDER, "swizzle": _ORDER, "copies": _ORDER,
        "home": _ORDER, "pages": "where global memory is read from",
    },
    "Access": {
        "buffer": _ORDER, "value": _ORDER, "thread": _ORDER, "origin": _ORDER, "index": _ORDER,
        "guard": "global memory's edges", "outside": _VALUE,
        "trimmed": "lines left out: their bytes are not expected either", "peer": _ORDER,
    },
    "Affine": {"constant": _ORDER, "terms": _ORDER},
    "Immediate": {"number": _VALUE},
    "Scalar": {"name": _VALUE, "size": _VALUE},
    "Predicate": {"origin": _VALUE, "value": _VALUE, "thread": _VALUE, "bound": _VALUE},
    "Barrier": {
        "name": _ORDER, "stages": _ORDER, "arrivals": _ORDER, "home": _ORDER, "number": _ORDER,
    },
    "Instruction": {
        "name": _ORDER, "reads": _ORDER, "writes": _ORDER, "completion": _ORDER,
        "issuer": _ORDER, "lower": _ORDER, "meaning": _ORDER, "types": _ORDER,
        "unit": "time", "variants": _VALUE, "atomic": "red.global, in global memory",
        "arch": "which chip has it", "laws": "further laws", "blocks": _VALUE,
        "folds": _VALUE, "per_cycle": "time",
    },
    "Do": {
        "instruction": _ORDER, "write": _ORDER, "reads": _ORDER, "values": _ORDER,
        "threads": _ORDER, "vector": "how many values one instruction moves", "variant": _VALUE,
        "lanes": _ORDER, "across": _ORDER, "signal": _ORDER, "multicast": _ORDER,
        "fresh": _ORDER, "where": _ORDER,
    },
    "For": {
        "var": _ORDER, "trips": _ORDER, "body": _ORDER,
        "unrolled": "how a loop is written out", "start": _ORDER,
    },
    "ForTile": {
        "tile": _ORDER, "turn": _ORDER, "body": _ORDER, "start": _ORDER, "step": _ORDER,
        "values": _ORDER,
    },
    "When": {"index": _ORDER, "bound": _ORDER, "body": _ORDER},
    "Elect": {"body": _ORDER},
    "Exit": {"access": _ORDER, "values": _VALUE, "threads": _ORDER},
    "Sync": {"barrier": _ORDER, "scope": _ORDER},
    "Commit": {"group": _ORDER},
    "WaitGroup": {"pending": _ORDER, "group": _ORDER, "read": "a source is read either way"},
    "Wait": {"barrier": _ORDER, "index": _ORDER},
    "Arrive": {
        "barrier": _ORDER, "index": _ORDER, "bytes": _ORDER, "to": _ORDER, "after": _ORDER,
    },
    "Fence": {"kind": _ORDER},
}  # fmt: skip
"""Every field of every part of a term, and what becomes of it."""


def require_fields(program: Program) -> None:
    """Say "not certified" of a term with a part or a field that the checker does not read."""
    parts: list[Any] = [program, *program.grid, *program.roles, *program.buffers]
    parts += program.barriers
    for statement, _ in walk(program):
        parts += [statement, *statement.forms]
        parts += [b for b in (getattr(statement, "barrier", None),) if not isinstance(b, int)]
        if isinstance(statement, Do):
            parts += [statement.instruction, *statement.reads]
            parts += [statement.where, *(statement.signal or ())]
        for access in statement.accesses:
            parts += [access, access.buffer]
    done: set[int] = set()
    for part in parts:
        if part is None or id(part) in done:
            continue
        done.add(id(part))
        kind: Any = type(part)  # mypy knows no hash of a type
        if strange := _strange(kind):
            uncertified(strange)


@cache
def _strange(kind: type) -> str:
    known = FIELDS.get(kind.__name__)
    if known is None:
        return f"the checker does not read a {kind.__name__}"
    names = {field.name for field in fields(kind)}
    more = sorted(names ^ known.keys())
    return f"the checker does not read {kind.__name__}.{more[0]}" if more else ""
