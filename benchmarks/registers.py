"""How well ``tinygpu.registers`` foresees ptxas: a confusion table over random schedules.

    python -m benchmarks.registers [seed [count]]

draws schedules of the machine ``simt`` that could be launched, emits and assembles each, and holds
the predicted spills against what ptxas reports (a spill: any byte in local memory).  It writes
``results/registers.json``.  The estimate was fitted to other seeds.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygpu.codegen.assemble import assemble
from tinygpu.codegen.emit import EMITTER_VERSION, emit
from tinygpu.codegen.provenance import provenance
from tinygpu.device import Device, load_device
from tinygpu.errors import AssemblyError
from tinygpu.machine import Chosen, Value
from tinygpu.machines.simt import Simt
from tinygpu.memory import DTYPES
from tinygpu.operation import matmul
from tinygpu.program import Program
from tinygpu.registers import predicted_spill, register_estimate, register_limit

__all__ = ["confusion", "draw", "main", "program_of", "truth"]

Case = tuple[str, dict[str, Value]]
_FMAS_MAX = 4096
"""Products in the unrolled loop's body: more takes ptxas minutes."""


def draw(seed: int, count: int, device: Device) -> list[Case]:
    """Return ``count`` different (input dtype, decisions) that could be launched."""
    rng = np.random.default_rng(seed)
    found: dict[tuple[object, ...], Case] = {}
    while len(found) < count:
        for dtype, values in _batch(rng, device):
            found[dtype, *values.values()] = (dtype, values)
    return list(found.values())[:count]


def _batch(rng: np.random.Generator, device: Device, tries: int = 40_000) -> Iterator[Case]:
    """Yield up to two cases of one random structure."""
    choices = Simt.decisions()
    dtype = str(rng.choice(["f32", "f32", "bf16", "f16"]))
    one = {n: rng.choice(c.values).item() for n, c in choices.items() if c.structural}
    many = {n: rng.choice(c.values, tries) for n, c in choices.items() if not c.structural}
    many["specialised"] = np.zeros(tries, int)
    d = Chosen(one | many)
    good = _launchable(d, DTYPES[dtype].bytes, device)
    operation = matmul(dtype, "f32" if one["combine"] == "red" else None)
    for requirement in Simt().requires(operation, d):
        good = good & requirement.holds
    for i in np.flatnonzero(good)[:2]:
        numbers = {n: column[i].item() for n, column in many.items()}
        yield dtype, {n: (one | numbers)[n] for n in choices}


def _launchable(d: Any, width: int, device: Device) -> NDArray[np.bool_]:
    """Say which of many schedules (arrays of decisions) fit the device and divide evenly."""
    a_smem, b_smem = d.a_from == "smem", d.b_from == "smem"
    warps = (d.tile_m // (d.lanes_m * d.thread_m)) * (d.tile_n // (32 // d.lanes_m * d.thread_n))
    threads = 32 * warps
    smem = a_smem * (d.tile_m + d.pad_a + d.tile_k) * d.tile_k + a_smem * d.pad_a * d.tile_m
    smem = (smem + b_smem * (d.tile_n + d.pad_b) * d.tile_k) * width * d.stages
    fmas = d.tile_k * d.thread_m * d.thread_n
    none = threads < 32  # does not divide: masked below, and kept from dividing by 0
    threads = np.where(none, 32, threads)
    good = ~none & (threads * d.ctas_per_sm <= device.threads_per_sm)
    good &= (threads <= device.threads_per_cta_max) & (fmas <= _FMAS_MAX)
    good &= smem + d.ctas_per_sm * 0 <= device.smem_bytes_per_cta_max
    good &= smem * d.ctas_per_sm <= device.smem_bytes_per_sm
    good &= (d.vector_shared * width <= 16) & (d.k_step * width <= 16)
    good &= d.vector_shared % d.vector_c == 0
    for through, along, across, vector in (
        (a_smem, d.tile_k, d.tile_m, d.vector_a),
        (b_smem, d.tile_n, d.tile_k, d.vector_b),
    ):
        good &= vector * width <= 16
        if through:
            side = np.maximum(np.minimum(along // vector, threads), 1)
            rows = np.maximum(threads // side, 1)
            good &= (along % vector == 0) & (along * across % (threads * vector) == 0)
            good &= (along % (side * vector) == 0) & (across % rows == 0) & (threads % side == 0)
            good &= (d.pipeline != "cp.async") | (vector * width >= 4)
    good &= a_smem | (d.k_step % d.vector_a == 0)
    good &= b_smem | (d.vector_shared % d.vector_b == 0)
    if a_smem and d.a_layout == "mk":
        good &= (d.pad_a % d.k_step == 0) & (d.swizzle_a <= np.log2(np.maximum(d.tile_k, 1)))
        good &= (d.vector_a <= 4) & (d.swizzle_a <= np.maximum(np.log2(d.tile_k) - 2, 0))
    return np.asarray(good)


def program_of(case: Case) -> Program:
    """Build the term of a case."""
    dtype, values = case
    output = "f32" if values["combine"] == "red" else None
    return Simt().program(matmul(dtype, output), Chosen(values))


def truth(case: Case) -> tuple[int, int] | str:
    """Return ptxas's registers and spilled bytes, or what went wrong."""
    try:
        cubin = assemble(emit(program_of(case)), "sm_90a")
    except AssemblyError as error:
        return str(error)
    return cubin.registers, cubin.spill_stores_bytes + cubin.spill_loads_bytes


def confusion(pairs: Sequence[tuple[bool, bool]]) -> dict[str, float]:
    """Count (predicted, true) spills; precision and recall are 1 where nothing could be wrong."""
    both = sum(p and t for p, t in pairs)
    only_predicted = sum(p and not t for p, t in pairs)
    only_true = sum(t and not p for p, t in pairs)
    return {
        "predicted and spilled": both,
        "predicted only": only_predicted,
        "spilled only": only_true,
        "neither": len(pairs) - both - only_predicted - only_true,
        "precision": round(both / (both + only_predicted), 4) if both + only_predicted else 1.0,
        "recall": round(both / (both + only_true), 4) if both + only_true else 1.0,
    }


def main(seed: int = 7001, count: int = 1000) -> None:
    """Assemble a sample and write the confusion tables."""
    device = load_device("h200")
    cases = draw(seed, count, device)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        truths = list(pool.map(truth, cases, chunksize=4))
    rows = []
    for case, found in zip(cases, truths, strict=True):
        if isinstance(found, str):
            raise SystemExit(f"{case}: {found}")
        program = program_of(case)
        rows.append(
            {
                "dtype": case[0],
                "accumulator": case[1]["accumulator"],
                "estimate": round(float(register_estimate(program)), 1),
                "limit": int(register_limit(program, device)),
                "predicted": bool(predicted_spill(program, device)),
                "registers": found[0],
                "spilled_bytes": found[1],
            }
        )

    def table(chosen: Sequence[dict[str, Any]], least_bytes: int = 1) -> dict[str, float]:
        return confusion([(r["predicted"], r["spilled_bytes"] >= least_bytes) for r in chosen])

    kinds = sorted({str(r["accumulator"]) for r in rows})
    result = {
        "provenance": provenance(f"python -m benchmarks.registers {seed} {count}"),
        "sample": {"seed": seed, "count": count, "arch": "sm_90a", "emitter": EMITTER_VERSION},
        "all": table(rows),
        "by accumulator": {k: table([r for r in rows if r["accumulator"] == k]) for k in kinds},
        "counting as spills only 64 B and more": table(rows, 64),
        "rows": rows,
    }
    path = Path(__file__).parent / "results" / "registers.json"
    path.parent.mkdir(exist_ok=True)
    lines = json.dumps({**result, "rows": []}, indent=2).removesuffix("[]\n}")
    listed = ",\n    ".join(map(json.dumps, rows))
    path.write_text(f"{lines}[\n    {listed}\n  ]\n}}\n", encoding="utf-8")
    sys.stdout.write(json.dumps(result["all"], indent=2) + "\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
