"""Laws of roles and clusters: who may issue what, what CTAs send one another, what barriers count.

A cluster is up to 8 CTAs, a role copies of some threads.  Statements are executed by each thread,
by a warpgroup together, or by one thread.  mbarriers count arrivals and bytes up to 2^20 - 1; a
phase of one ends when as many bytes have landed as were expected, so the two have to be equal:

    sum over arrivals of expected bytes = sum over loads of box bytes * CTAs that send here

Registers that a role gets by setmaxnreg come from those that the CTA entered with,

    sum over roles of threads * registers <= threads of the CTA * registers at entry

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.hopper import STARTS, Hopper
>>> from tinygpu.term.operation import matmul
>>> program = Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS["cluster"]))
>>> case = Case.of(program, {"m": 64, "n": 64, "k": 64}, load_device("h200"))
>>> entry_registers(case)
168
>>> print(next(c for c in ROLE_LAWS["mbarrier"].clauses(case) if "land" in c.text))
full expects 49152 B of a phase, and 49152 B land

Source: PTX ISA 9, "Parallel Synchronization and Communication Instructions", "setmaxnreg"; CUDA
C++ Programming Guide, "Thread Block Clusters"; ``docs/hopper-laws.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tinygpu.isa.tcgen05 import TENSOR_MEMORY
from tinygpu.legality.law import Law
from tinygpu.legality.reach import Case, Clause, Context, Place, moves, origin_of, product
from tinygpu.legality.resources import held_registers
from tinygpu.numbers import Number, Truth
from tinygpu.term.program import Access, Arrive, Block, Do, Elect, For, Role, select

__all__ = ["ROLE_LAWS", "entry_registers"]

_CTAS = (1 << 31) - 1  # spec: gridDim.x
_CLUSTER, _LARGE_CLUSTER = 8, 16  # spec: what every chip of the architecture takes, and some
_COUNT = (1 << 20) - 1  # spec: an mbarrier's arrivals, and its bytes
_WARPGROUP = 128
_LEAST, _MOST = 24, 256  # spec: setmaxnreg
_WORKING = 24  # an estimate: addresses, descriptors, counters of a lean loop


def architecture(case: Case) -> Iterator[Clause]:
    """Compare the instructions with the device's architecture."""
    arch = case.context.chip.arch
    for instruction in dict.fromkeys(place.do.instruction for place in case.places):
        text, least = "{} needs {}; {} is {}", instruction.arch
        yield Clause(
            instruction.runs_on(arch), text, (instruction.name, least, case.context.chip.name, arch)
        )


def grid(case: Case) -> Iterator[Clause]:
    """Compare the CTAs of a launch with the largest grid."""
    cluster = product(extent for _, extent in case.program.cluster)
    tiles: Number = product(case.context.grid.values())
    text = "{} tiles of {} CTAs; a grid has at most {} CTAs"
    yield Clause(tiles * cluster <= _CTAS, text, (tiles, cluster, _CTAS))


def cluster_size(case: Case) -> Iterator[Clause]:
    """Compare the CTAs of a cluster with what the chip takes."""
    if case.program.cluster:
        ctas = product(extent for _, extent in case.program.cluster)
        text = "a cluster of {} has {} CTAs; 1 to {} are allowed"
        names = " x ".join(str(extent) for _, extent in case.program.cluster)
        most = _LARGE_CLUSTER if case.context.chip.clusters_of_16 else _CLUSTER
        yield Clause((ctas >= 1) & (ctas <= most), text, (names, ctas, most))


def issuers(context: Context, place: Place) -> Iterator[Clause]:
    """Check that as many threads execute a statement as its instruction has."""
    do, role = place.do, place.role
    match do.instruction.issuer:
        case "one":
            yield Clause(place.elected, "{}: each thread of {} issues it", (do, role.name))
        case "warpgroup":
            yield Clause(not place.elected, "{}: one thread cannot issue it", (do,))
            text = "{}: a warpgroup of 128 threads issues it, and a copy of {} has {}"
            yield Clause(role.threads == _WARPGROUP, text, (do, role.name, role.threads))
        case "warp" | "thread":
            text = "{}: one thread has no lanes beside it"
            yield Clause(not (do.instruction.of_warps and place.elected), text, (do,))


def collective(case: Case) -> Iterator[Clause]:
    """Check that what all threads do is not left to one, and what one does not done by all."""
    for _, statement, around in case.statements:
        elected = any(isinstance(s, Elect) for s in around)
        if statement.needs.startswith(TENSOR_MEMORY):
            continue  # law tcgen05_collective
        if statement.by == "all":
            yield Clause(not elected, "{}: one thread alone executes it", (statement,))
        elif statement.by == "one":
            yield Clause(elected, "{}: threads without stores execute it", (statement,))
    start: Number = 0
    for role in case.program.roles:
        if any(p.role is role and p.do.instruction.issuer == "warpgroup" for p in case.places):
            text = "{} starts at thread {}; a warpgroup starts at multiples of 128"
            yield Clause(start % _WARPGROUP == 0, text, (role.name, start))
        start = start + role.threads * role.copies


def multicast(context: Context, place: Place) -> Iterator[Clause]:
    """Check that the parts that CTAs send one another are parts of one tile.

    CTAs along the axis differ in the part alone: going one further moves as far in gmem as in
    shared memory.  Along another axis of the cluster every CTA has a tile of its own.
    """
    do, extents = place.do, dict(context.cluster)
    if do.instruction.unit != "tma" or do.write.buffer.level != "smem":
        return
    if do.multicast:
        known = do.multicast in extents
        yield Clause(known, "{} is sent along {}, no axis of the cluster", (do, do.multicast))
        if not known:
            return
    used = [
        (d, name, step)
        for d in range(len(do.write.buffer.shape))
        for name, step in origin_of(context, do.write, d)[1]
        if name in extents
    ]
    for _, name, _ in used:
        if name != do.multicast:
            text = "{} brings a part for each {}, and is not sent along it"
            yield Clause(extents[name] == 1, text, (do, name))
    mine = [(d, step) for d, name, step in used if name == do.multicast]
    if do.multicast and not mine:
        text = "{}: all {} CTAs of {} send the whole tile"
        values = (do, extents[do.multicast], do.multicast)
        yield Clause(extents[do.multicast] == 1, text, values)
    (source,) = do.reads
    assert isinstance(source, Access)
    for d, step in mine:
        holds: Truth = False
        for target, origin in zip(do.write.value, source.value, strict=True):
            if not moves(target[d]):
                continue
            for e, apart in enumerate(origin):
                if moves(apart):
                    its = dict(origin_of(context, source, e)[1]).get(do.multicast, 0)
                    holds = holds | (its * target[d] == step * apart)
        text = "{}: parts along {} lie {} apart in shared memory, and elsewhere in gmem"
        yield Clause(holds | (extents[do.multicast] == 1), text, (do, do.multicast, step))


def home(context: Context, place: Place) -> Iterator[Clause]:
    """Check who writes into shared memory of another CTA."""
    do, buffer = place.do, place.do.write.buffer
    if buffer.home:
        known = buffer.home in dict(context.cluster)
        text = "{}: its home is along {}, no axis of the cluster"
        yield Clause(known, text, (do, buffer.home))
        plain = do.instruction.name == "st.shared" and buffer.level == "smem"
        yield Clause(plain, "{}: only st.shared writes into another CTA", (do,))


def mbarrier(case: Case) -> Iterator[Clause]:
    """Check an mbarrier's counts, and that what lands in a phase is what is expected."""
    extents = dict(case.program.cluster)
    ctas = product(extents.values())
    expected: dict[str, Number] = {}
    landed: dict[str, Number] = {}
    for role, statement, around in case.statements:
        if isinstance(statement, Arrive) and moves(statement.bytes):
            name, every = statement.barrier.name, ctas if statement.to == "cluster" else 1
            here = statement.bytes * _times(role, around) * every
            expected[name] = expected.get(name, 0) + here
        elif isinstance(statement, Do) and statement.signal:
            name = statement.signal[0].name
            size = product(statement.values) * statement.write.buffer.type.bytes
            here = size * _times(role, around) * extents.get(statement.multicast, 1)
            landed[name] = landed.get(name, 0) + here
        elif isinstance(statement, Do):
            lost = statement.instruction.completion == "mbarrier"
            yield Clause(not lost, "{} tells no barrier that it is done", (statement,))
    for barrier in (b for b in case.program.barriers if not b.named):  # else law barrier_ids
        text = "{} counts {} arrivals; 1 to {} are allowed"
        holds = (barrier.arrivals >= 1) & (barrier.arrivals <= _COUNT) & (barrier.stages >= 1)
        yield Clause(holds, text, (barrier.name, barrier.arrivals, _COUNT))
        got, want = landed.get(barrier.name, 0), expected.get(barrier.name, 0)
        text = "{} expects {} B of a phase, and {} B land"
        yield Clause(got == want, text, (barrier.name, want, got))
        text = "{} expects {} B of a phase; {} are allowed"
        yield Clause(want <= _COUNT, text, (barrier.name, want, _COUNT))


def setmaxnreg(case: Case) -> Iterator[Clause]:
    """Check what roles ask for, and that the CTA has it."""
    total: Number = 0
    entry = entry_registers(case)
    roles = [role for role in case.program.roles if moves(role.registers)]
    for role in case.program.roles:
        asked = select(role.registers == 0, entry, role.registers)
        total = total + asked * (role.threads * role.copies)
    for role in roles:
        number = role.registers
        holds = (number == 0) | ((number % 8 == 0) & (number >= _LEAST) & (number <= _MOST))
        text = "{} asks for {} registers; multiples of 8 from {} to {} are allowed"
        yield Clause(holds, text, (role.name, number, _LEAST, _MOST))
        text = "{} asks for registers with {} threads, which are no whole warpgroups"
        holds = (number == 0) | (role.threads % _WARPGROUP == 0)
        yield Clause(holds, text, (role.name, role.threads))
    if roles:
        threads = case.program.threads
        text = "{} ask for {} registers; {} threads enter with {} each"
        names = " and ".join(role.name for role in roles)
        yield Clause(total <= entry * threads, text, (names, total, threads, entry))


def entry_registers(case: Case) -> Number:
    """Return the registers that each thread of a CTA enters with."""
    device, program = case.context.chip, case.program
    unit = device.register_allocation_unit
    share = device.registers_per_sm // (program.threads * program.ctas_per_sm) // unit * unit
    most = device.registers_per_thread_max
    return select(share > most, most, share)


def accumulators(case: Case) -> Iterator[Clause]:
    """Check that sums leave a role's threads registers to work with."""
    for role in case.program.roles:
        sums = {
            p.do.write.buffer.name: p.do.write.buffer
            for p in case.places
            if p.role is role
            and p.do.instruction.unit == "tensor"
            and p.do.write.buffer.level == "registers"
        }
        if sums:
            entry = entry_registers(case)
            has = select(role.registers == 0, entry, role.registers)
            held = held_registers(sums.values())
            text = "{} of a thread of {} need {} registers and {} to work with; it has {}"
            values = (" and ".join(sums), role.name, held, _WORKING, has)
            yield Clause(held + _WORKING <= has, text, values)


def _times(role: Role, around: tuple[Block, ...]) -> Number:
    """Return how often a statement is executed in an iteration of the endless loops around it."""
    elected = any(isinstance(s, Elect) for s in around)
    times: Number = role.copies if elected else role.copies * role.threads
    for block in around:
        if isinstance(block, For) and not isinstance(block.trips, str):
            times = times * (block.trips - block.start)
    return times


_PTX = "PTX ISA 9, "

ROLE_LAWS: Mapping[str, Law] = {
    law.name: law
    for law in (
        Law(
            "architecture",
            "States that the device has the instructions: wgmma is sm_90a's alone, tcgen05 "
            "sm_100a's.",
            _PTX + "Target ISA Notes of each instruction",
            "choose a device that has them, by --device, or the machine simt",
            of_case=architecture,
        ),
        Law(
            "grid",
            "States that the CTAs of a launch are at most 2^31 - 1.",
            "CUDA C++ Programming Guide, Compute Capabilities",
            "choose larger tiles (tile_m, tile_n)",
            of_case=grid,
            of_sizes=True,
        ),
        Law(
            "cluster_size",
            "States that a cluster has 1 to 8 CTAs, or up to 16 where the device has room for one.",
            "CUDA C++ Programming Guide, Thread Block Clusters; "
            "CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED",
            "lower the CTAs of a cluster (cluster_m, cluster_n, cluster_k)",
            of_case=cluster_size,
        ),
        Law(
            "issuers",
            "States that TMA is issued by one thread, wgmma and stmatrix by a warpgroup, and that "
            "all of a tile's threads move it.",
            _PTX + "cp.async.bulk.tensor, wgmma.mma_async, stmatrix",
            "put it into, or take it out of, an Elect",
            of_place=issuers,
        ),
        Law(
            "collective",
            "States that all threads execute barriers and wgmma's groups and fences, the one that "
            "stores TMA's groups, and that warpgroups start at multiples of 128.",
            _PTX + "bar, wgmma.commit_group, cp.async.bulk.commit_group",
            "put it into, or take it out of, an Elect",
            of_case=collective,
        ),
        Law(
            "multicast",
            "States that CTAs along an axis of a cluster send each other the parts of one tile.",
            _PTX + "cp.async.bulk.tensor (.multicast::cluster)",
            "send each part along the axis that it is a part for, or choose a smaller cluster "
            "(cluster_m, cluster_n)",
            of_place=multicast,
        ),
        Law(
            "home",
            "States that what goes to shared memory of another CTA goes to one along an axis of "
            "the cluster, by st.shared.",
            _PTX + "st (.shared::cluster), mapa",
            "name an axis of the cluster as the buffer's home, and write by st.shared",
            of_place=home,
        ),
        Law(
            "mbarrier",
            "States that an mbarrier counts 1 to 2^20 - 1 arrivals and fewer than 2^20 bytes, and "
            "that the bytes that a phase expects are those that land in it.",
            _PTX + "mbarrier (phases, tx-count)",
            "expect the bytes of all parts, or choose a smaller tile (tile_m, tile_n, tile_k)",
            of_case=mbarrier,
        ),
        Law(
            "setmaxnreg",
            "States that roles ask for multiples of 8 registers, from 24 to 256 of a thread, and "
            "for no more than the CTA entered with.",
            _PTX + "setmaxnreg",
            "lower the registers of a role, or how often it is there (consumers, ctas_per_sm)",
            of_case=setmaxnreg,
        ),
        Law(
            "accumulators",
            "States that sums leave a thread 24 registers to work with.",
            "ptxas serialises products whose sums do not fit (its message C7511)",
            "give a consumer fewer sums (tile_n, tile_m, consumers)",
            of_case=accumulators,
        ),
    )
}
"""Laws of roles, clusters and mbarriers; part of ``tinygpu.legality.laws.LAWS``."""
