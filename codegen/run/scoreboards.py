"""Scoreboards: whether the SASS that ptxas wrote waits for the registers that it uses.

An instruction of variable latency raises a counter, its *write scoreboard*, and lowers it when its
results stand in registers; a *read scoreboard* is lowered when its operands have been read.  There
are six counters.  An instruction waits until those of its *wait mask* are 0; ``DEPBAR`` waits for
one that it names.  wgmma is waited for by ``WARPGROUP.DEPBAR``, which counts groups that end in
order.  ptxas writes all of this, so a ptxas that drops a wait makes a wrong kernel of right PTX.

Definition.  Let G be the control-flow graph of a function.  A producer p is *pending* at q if
some path of G from p to q has no wait that covers p.  The function is right if no q

    reads or writes a register that a pending producer writes, or
    writes a register that a pending producer reads.

Each instruction adds and removes producers, so a bit for each of them and a fixed point over G
decide it for every path.  A wait for scoreboard b covers p if

    p raised b;
    or p raised no read scoreboard, its operands are meant, and a later instruction of p's unit
    raised b: a unit reads in order;
    or p raised no write scoreboard, and a later result of p's unit raised b: those end in order.

Loads from shared memory and shuffles overwrite each other's results in order, and so do wgmmas.
Two guards that exclude each other do so while their predicate keeps its value.  Predicates, and
uniform registers but those of tensor memory and TMA, are read when an instruction starts.

What each instruction reads and writes says nvdisasm (``-plr``); a register that an operand names
and nvdisasm does not mark, an opcode, a branch or a line that is not known make the answer *not
checked*.  Not looked at: stall counts (waits of fixed latency), memory, and barriers between
threads.

>>> unwaited("").unknown
'no instructions'

Source: Jia, Maggioni, Staiger, Scarpazza, "Dissecting the NVIDIA Volta GPU Architecture via
Microbenchmarking" (2018), section 2: bits 105 to 125 are stall (4), yield (1), write scoreboard
(3), read scoreboard (3), wait mask (6).  In order: observed in the kernels of
``benchmarks/scoreboards.py``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

__all__ = ["Hazard", "SassInstruction", "Waits", "instructions", "unwaited"]

_NONE, _SCOREBOARDS = 7, 6  # spec: 7 in a field of 3 bits is no scoreboard
_FIRST = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(\S.*?)\s*;?\s*/\* 0x([0-9a-f]{16}) \*/")
_SECOND = re.compile(r"\s+/\* 0x([0-9a-f]{16}) \*/")
_LABEL = re.compile(r"([.$\w]+):")
_TEXT = re.compile(r"\t\.section\t(\.text[^,]*),")
_NAMED = re.compile(r"(?<![\w.])(U?[RP]\d+)\b")
_TARGET = re.compile(r"`\(([^)]+)\)")
_COMMENT = re.compile(r"\s*\(\*.*?\*\)")
_DEPBAR = re.compile(r"SB(\d), 0x([0-9a-f]+)(?:, \{([\d,]+)\})?$")
_GROUPS = re.compile(r"gsb0, 0x([0-9a-f]+)$")
_FILES: Mapping[str, str] = {"GPR": "R", "PRED": "P", "UGPR": "UR", "UPRED": "UP"}


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CONVERSIONS = "MUFU I2F F2F F2I FRND POPC FLO BREV FCHK"
_MEMORY = (
    "LDS LDSM STS STSM LDG STG LD ST LDL STL LDGSTS ATOMS ATOM ATOMG RED REDG STAS SHFL LDTM STTM "
    "SYNCS FENCE"
)
_DOUBLE, _TO_UNIFORM = "DADD DMUL DFMA DSETP", "R2UR"
_UNITS: Mapping[str, int] = {
    opcode: unit
    for unit, opcodes in enumerate(
        (_CONVERSIONS, _MEMORY, _DOUBLE, _TO_UNIFORM, "LDC", "LDCU", "S2R", "S2UR")
    )
    for opcode in opcodes.split()
}
_VARIABLE = _names(
    f"{_CONVERSIONS} {_MEMORY} LDC LDCU S2R S2UR REDUX USETMAXREG MATCH VOTE.VTG LDGDEPBAR BAR "
    "MEMBAR UTMALDG UTMASTG UTMAREDG UTMACCTL UTMACMDFLUSH UTMAPF UTCATOMSWS UTCBAR UTCCP UTCHMMA "
    "UTCQMMA UTCIMMA UTCOMMA UBLKCP UBLKRED"
)
"""Opcodes of variable latency: a result without a scoreboard of its own is not there at once."""
_EITHER = tuple(_names(opcodes) for opcodes in (_DOUBLE, _TO_UNIFORM))
"""Opcodes whose latency varies on some chips: where one of a function raises a scoreboard."""
_SHARED = _names("LDS LDSM SHFL")
"""Opcodes whose results come in order, so that a later one may overwrite an earlier one's."""
_WGMMA = _names("HGMMA QGMMA IGMMA BGMMA")
_FIXED = _names(
    "ACQBULK BMSK BPT BREAK CCTL CGAERRBAR CS2R DEPBAR ELECT ERRBAR F2FP FADD FADD2 FFMA FFMA2 "
    "FMNMX FMNMX3 FMUL FMUL2 FSEL FSET FSETP HADD2 HFMA2 HMMA HMNMX2 HMUL2 HSET2 HSETP2 I2FP IABS "
    "IADD IADD3 IDP IMAD IMMA IMNMX ISETP LEA LOP3 MOV NANOSLEEP NOP P2R PLOP3 PREEXIT PRMT R2P "
    "RPCMOV SEL SGXT SHF UCGABAR_ARV UCGABAR_WAIT UFLO UIADD3 UIMAD UIMNMX UISETP ULDC ULEA ULOP3 "
    "UMOV UPLOP3 UPOPC UPRMT USEL USGXT USHF UVIADD UVIMNMX UVIRTCOUNT VABSDIFF VIADD VIADDMNMX "
    "VIMNMX VIMNMX3 VOTE VOTEU WARPGROUP WARPSYNC YIELD"
)
"""Opcodes of fixed latency, which stall counts serve."""
_BRANCHES = _names("BRA BSSY BSYNC EXIT CALL RET")
_WRITES_NOTHING = frozenset({"LDGSTS"})  # nvdisasm marks its predicate as if it were a result
_BY_CONVENTION = frozenset({"CALL", "RET"})  # nvdisasm marks what the calling convention says


@dataclass(frozen=True, slots=True)
class SassInstruction:
    """One instruction: ``write`` and ``read`` are its scoreboards (7: none), ``waits`` its mask.

    ``reads`` and ``writes`` are registers by name: R4, P0, UR8, UP1.
    """

    address: int
    guard: str
    opcode: str
    operands: str
    write: int
    read: int
    waits: int
    reads: frozenset[str]
    writes: frozenset[str]

    @property
    def name(self) -> str:
        """The opcode without its modifiers."""
        return self.opcode.partition(".")[0]

    def __str__(self) -> str:
        """Its address and text, as in SASS."""
        guard = f"@{self.guard} " if self.guard else ""
        return f"{self.address:04x} {guard}{self.opcode} {self.operands}".rstrip()


@dataclass(frozen=True, slots=True)
class Hazard:
    """A register that ``consumer`` "reads" or "overwrites" while ``producer`` is pending."""

    register: str
    how: str
    producer: SassInstruction
    consumer: SassInstruction

    def __str__(self) -> str:
        return f"`{self.consumer}` {self.how} {self.register} without waiting for `{self.producer}`"


@dataclass(frozen=True, slots=True)
class Waits:
    """What the check says: the hazards, or why it says nothing (``unknown``).

    ``instructions`` says how many were looked at.
    """

    hazards: tuple[Hazard, ...] = ()
    unknown: str = ""
    instructions: int = 0

    @property
    def right(self) -> bool:
        """Whether every register is waited for; False where it is not known."""
        return not self.hazards and not self.unknown

    def __str__(self) -> str:
        """One line: right, wrong with the first hazard, or not checked and why."""
        if self.unknown:
            return f"not checked: {self.unknown}"
        if not self.hazards:
            return "right"
        more = len(self.hazards) - 1
        return f"wrong: {self.hazards[0]}" + (f", and {more} more" if more else "")


class _UnknownError(Exception):
    """What the check does not know; it never leaves this module."""


@dataclass(slots=True)
class _Function:
    """A section's instructions, and the labels' places among them."""

    code: list[SassInstruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


def unwaited(sass: str) -> Waits:
    """Check a text of ``nvdisasm -c -hex -plr -lrm narrow``."""
    hazards: list[Hazard] = []
    count = 0
    try:
        for function in _functions(sass):
            hazards += _Check(function).hazards()
            count += len(function.code)
    except _UnknownError as error:
        return Waits(unknown=str(error))
    return Waits(tuple(hazards), "" if count else "no instructions", count)


def instructions(sass: str) -> tuple[SassInstruction, ...]:
    """Return the instructions of a text that ``unwaited`` knows; else none."""
    try:
        return tuple(i for function in _functions(sass) for i in function.code)
    except _UnknownError:
        return ()


def _functions(sass: str) -> list[_Function]:
    found: list[_Function] = []
    code = False
    columns: list[tuple[str, int, int]] = []
    files: list[str] = []
    first: re.Match[str] | None = None
    for line in sass.splitlines():
        text, bar, marks = line.partition("// |")
        if line.startswith("\t.section\t"):
            code, columns = _TEXT.match(line) is not None, []
            if code:
                found.append(_Function())
        elif not code:
            continue
        elif match := _FIRST.match(text):
            if first:
                raise _UnknownError(f"line {first[0].strip()}")
            first = match
        elif first and (match := _SECOND.match(text)):
            if not columns:
                raise _UnknownError("nvdisasm gave no life ranges")
            found[-1].code.append(_instruction(first, int(match[1], 16), columns, marks))
            first = None
        elif match := _LABEL.match(text):
            found[-1].labels[match[1]] = len(found[-1].code)
        elif bar and not columns:
            fields = marks.split("|")
            if fields[0].strip() in _FILES:
                files = [name.strip() for name in fields]
            elif "#" in marks:
                columns = _columns(files, fields)
    if first:
        raise _UnknownError(f"line {first[0].strip()}")
    return [function for function in found if function.code]


def _columns(files: Sequence[str], fields: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return the prefix, the first column and the number of each file's registers."""
    found, at = [], 0
    for name, text in zip(files, fields, strict=True):
        if name:
            start = text.index("#") + 2
            digits = text[start:].rstrip()
            if name not in _FILES or digits != "".join(str(i % 10) for i in range(len(digits))):
                raise _UnknownError(f"nvdisasm's columns of {name}")
            found.append((_FILES[name], at + start, len(digits)))
        at += len(text) + 1
    return found


def _instruction(
    first: re.Match[str], second: int, columns: Sequence[tuple[str, int, int]], marks: str
) -> SassInstruction:
    guard, text = "", _COMMENT.sub("", first[2])
    if text.startswith("@"):
        guard, _, text = text[1:].partition(" ")
    opcode, _, operands = text.strip().partition(" ")
    reads, writes = set(), set()
    for prefix, start, count in columns:
        for number, mark in enumerate(marks[start : start + count]):
            if mark in "vx":
                reads.add(f"{prefix}{number}")
            if mark in "^x":
                writes.add(f"{prefix}{number}")
            if mark not in "vx^: ":
                raise _UnknownError(f"nvdisasm's mark {mark}")
    name = opcode.partition(".")[0]
    if name not in _VARIABLE | _FIXED | _BRANCHES | _WGMMA and name not in _UNITS:
        raise _UnknownError(f"opcode {opcode}")
    named = {*_NAMED.findall(operands), *_NAMED.findall(guard)}
    if lost := named - reads - writes:
        raise _UnknownError(f"nvdisasm does not mark {min(lost)} of {opcode} {operands}")
    if name in _BY_CONVENTION:
        reads, writes = reads & named, writes & named
    if name in _WRITES_NOTHING:
        writes = set()
    control = second >> 41  # from bit 105 of the two words
    return SassInstruction(
        address=int(first[1], 16),
        guard="" if guard in ("PT", "UPT") else guard,
        opcode=opcode,
        operands=operands.strip(),
        write=control >> 5 & 7,
        read=control >> 8 & 7,
        waits=control >> 11 & 63,
        reads=frozenset(reads),
        writes=frozenset(writes),
    )


def _successors(function: _Function) -> list[list[int]]:
    """Return where each instruction goes on.  Raises _UnknownError for a branch not known."""
    code, labels = function.code, function.labels
    joins: dict[str, set[int]] = defaultdict(set)
    after_calls: set[int] = set()

    def target(i: SassInstruction) -> int:
        match = _TARGET.search(i.operands)
        if match is None or match[1] not in labels:
            raise _UnknownError(f"branch {i}")
        return labels[match[1]]

    for number, i in enumerate(code):
        if i.name == "BSSY":
            joins[i.operands.partition(",")[0]].add(target(i))
        elif i.name == "CALL":
            after_calls.add(number + 1)
    found = []
    for number, i in enumerate(code):
        following = [number + 1]
        match i.name:
            case "BRA":
                always = not i.guard and i.operands.startswith("`") and i.opcode == "BRA"
                following = [target(i)] if always else [target(i), number + 1]
            case "BSYNC":
                if number + 1 not in joins[i.operands]:
                    raise _UnknownError(f"branch {i}")
            case "EXIT":
                following = [number + 1] if i.guard else []
            case "CALL":
                if i.opcode != "CALL.REL.NOINC":
                    raise _UnknownError(f"branch {i}")
                following = [target(i), number + 1] if i.guard else [target(i)]
            case "RET":
                places = (after_calls | {*labels.values()}) - {0}  # not its beginning
                following = sorted(_returns(i, code) & places)
                if not following:
                    raise _UnknownError(f"branch {i}")
            case "WARPSYNC" if "`" in i.operands:
                following = [target(i), number + 1]
            case _ if "`" in i.operands and i.name != "BSSY":
                raise _UnknownError(f"branch {i}")
        found.append([n for n in following if n < len(code)])
    return found


def _returns(ret: SassInstruction, code: Sequence[SassInstruction]) -> set[int]:
    """Return the places whose addresses are moved into the register that RET goes to."""
    at = {i.address: number for number, i in enumerate(code)}
    moves = [i for i in code if i.opcode.startswith(("MOV", "IMAD.MOV"))]
    holders, found = [ret.operands.partition(" ")[0]], set()
    for holder in holders:
        for i in moves:
            to, *_, moved = i.operands.split(", ")
            if to == holder and moved.startswith("0x") and int(moved, 16) in at:
                found.add(at[int(moved, 16)])
            elif to == holder and _NAMED.fullmatch(moved) and moved not in holders:
                holders.append(moved)
    return found


State = tuple[int, ...]
"""Sets of producers, a bit each, in this order:

pending results, and for each scoreboard those of them that it does not cover; the same of operands;
producers whose guard's predicate has changed since; wgmmas by how many groups ended after them.
"""
_RESULTS, _OPERANDS, _CHANGED, _OPEN = 0, 7, 14, 15


class _Check:
    """The fixed point of one function."""

    def __init__(self, function: _Function) -> None:
        self.code = function.code
        self.successors = _successors(function)
        self.writers: dict[str, int] = defaultdict(int)
        self.readers: dict[str, int] = defaultdict(int)
        self.wgmma = 0
        self._results, self._operands = 0, 0
        self._shared = 0
        self._alone, self._unread = 0, 0  # without a scoreboard of their own
        self._unit: dict[int, int] = defaultdict(int)
        self._guarded: dict[str, int] = defaultdict(int)
        self._waited = [_waited(i) for i in self.code]
        self._left = [_left(i) for i in self.code]
        self._most = max((n for n in self._left if n is not None), default=0) + 1
        raising = {i.name for i in self.code if i.write != _NONE or i.read != _NONE}
        variable = _VARIABLE.union(*(family for family in _EITHER if family & raising))
        for number, i in enumerate(self.code):
            bit = 1 << number
            late = {r for r in i.reads if r[0] == "R" or (r[:2] == "UR" and i.name[:2] == "UT")}
            raises = i.write != _NONE or i.read != _NONE or i.name in variable
            if i.name in _WGMMA:
                self.wgmma |= bit
                late -= i.writes
            if i.name in _SHARED:
                self._shared |= bit
            if i.guard:
                self._guarded[i.guard.lstrip("!")] |= bit
            if i.name in _UNITS:
                self._unit[_UNITS[i.name]] |= bit
            if i.writes and (i.write != _NONE or i.name in variable or i.name in _WGMMA):
                self._results |= bit
                self._alone |= bit if i.write == _NONE else 0
                for register in i.writes:
                    self.writers[register] |= bit
            if late and (raises or i.name in _WGMMA):
                self._operands |= bit
                self._unread |= bit if i.read == _NONE else 0
                for register in late:
                    self.readers[register] |= bit

    def hazards(self) -> list[Hazard]:
        """Return what is used too early, in the order of the code; a pair of instructions once."""
        entry = self._fixed_point()
        found: dict[tuple[int, int, str], Hazard] = {}
        for number, i in enumerate(self.code):
            state = entry.get(number)
            if state is None:
                continue
            state = self._after_waits(number, state)
            for how, register, pending in self._uses(i, state):
                for producer in _bits(pending):
                    p = self.code[producer]
                    if not self._excluded(producer, p, i, state):
                        key = producer, number, how
                        found.setdefault(key, Hazard(register, how, p, i))
        return list(found.values())

    def _uses(self, i: SassInstruction, state: State) -> Iterator[tuple[str, str, int]]:
        """Yield each use of a register, and the producers that it would have to wait for."""
        groups = 0
        for bits in state[_OPEN:]:
            groups |= bits
        results, operands = state[_RESULTS] | groups, state[_OPERANDS] | groups
        chained = self.wgmma if i.name in _WGMMA else 0
        unit = self._unit[_UNITS[i.name]] if i.name in _UNITS else chained
        for register in sorted(i.reads):
            sums = chained if register in i.writes else 0
            yield "reads", register, results & self.writers[register] & ~sums
        ordered = self._shared if i.name in _SHARED else chained
        for register in sorted(i.writes):
            yield "overwrites", register, results & self.writers[register] & ~ordered
            yield "overwrites", register, operands & self.readers[register] & ~unit

    def _excluded(self, number: int, p: SassInstruction, i: SassInstruction, state: State) -> bool:
        """Whether the two never run both: their guards are opposite and nothing changed them."""
        opposite = f"!{p.guard}" == i.guard or p.guard == f"!{i.guard}"
        return bool(p.guard and i.guard) and opposite and not state[_CHANGED] >> number & 1

    def _fixed_point(self) -> dict[int, State]:
        """Return the state before each instruction that is reached."""
        entry: dict[int, State] = {0: (0,) * (_OPEN + self._most + 1)}
        work = [0]
        while work:
            number = heappop(work)
            state = self._after(number, self._after_waits(number, entry[number]))
            for following in self.successors[number]:
                known = entry.get(following)
                joined = state if known is None else _joined(known, state)
                if joined != known:
                    entry[following] = joined
                    heappush(work, following)
        return entry

    def _after_waits(self, number: int, state: State) -> State:
        """Remove the producers that an instruction waits for."""
        left = self._left[number]
        if not self._waited[number] and left is None:
            return state
        sets = list(state)
        for scoreboard in self._waited[number]:
            for kind in (_RESULTS, _OPERANDS):
                kept = sets[kind + 1 + scoreboard]
                for at in range(kind, kind + 7):
                    sets[at] &= kept
        if left is not None:
            for at in range(_OPEN + left + 1, len(sets)):
                sets[at] = 0
        return tuple(sets)

    def _after(self, number: int, state: State) -> State:
        """Add an instruction as a producer, and what its scoreboards cover besides."""
        i, bit = self.code[number], 1 << number
        sets = list(state)
        for kind, producers in ((_RESULTS, self._results), (_OPERANDS, self._operands)):
            if producers & bit & ~self.wgmma:
                for at in range(kind, kind + 7):
                    sets[at] |= bit
        unit = self._unit[_UNITS[i.name]] if i.name in _UNITS else 0
        if i.write != _NONE:
            sets[_RESULTS + 1 + i.write] &= ~(bit | unit & self._alone)
            sets[_OPERANDS + 1 + i.write] &= ~(bit | unit & self._unread)
        if i.read != _NONE:
            sets[_OPERANDS + 1 + i.read] &= ~(bit | unit & self._unread)
        for register in i.writes:
            if register in self._guarded:
                sets[_CHANGED] |= self._guarded[register]
        sets[_CHANGED] &= ~bit
        if self.wgmma & bit:
            sets[_OPEN] |= bit
            if i.operands.endswith("gsb0"):
                sets[-1] |= sets[-2]
                sets[_OPEN + 1 : -1] = sets[_OPEN:-2]
                sets[_OPEN] = 0
        return tuple(sets)


def _joined(one: State, other: State) -> State:
    return tuple(a | b for a, b in zip(one, other, strict=True))


def _bits(value: int) -> Iterator[int]:
    while value:
        lowest = value & -value
        yield lowest.bit_length() - 1
        value ^= lowest


def _waited(i: SassInstruction) -> tuple[int, ...]:
    """Return the scoreboards that are 0 when an instruction starts."""
    found = {b for b in range(_SCOREBOARDS) if i.waits >> b & 1}
    if i.name == "DEPBAR":
        match = _DEPBAR.match(i.operands) if i.opcode == "DEPBAR.LE" else None
        if match is None:
            raise _UnknownError(f"opcode {i.opcode} {i.operands}")
        found |= {int(b) for b in (match[3] or "").split(",") if b}
        if not int(match[2], 16):
            found.add(int(match[1]))
    return tuple(sorted(found))


def _left(i: SassInstruction) -> int | None:
    """Return how many groups of wgmma may be pending after an instruction that waits for them."""
    if i.name in _WGMMA:
        if "gsb" in i.operands and not i.operands.endswith(" gsb0"):
            raise _UnknownError(f"opcode {i.opcode} {i.operands}")
        return None
    if i.name != "WARPGROUP" or i.opcode == "WARPGROUP.ARRIVE":
        return None
    match = _GROUPS.match(i.operands) if i.opcode == "WARPGROUP.DEPBAR.LE" else None
    if match is None:
        raise _UnknownError(f"opcode {i.opcode} {i.operands}")
    return int(match[1], 16)
