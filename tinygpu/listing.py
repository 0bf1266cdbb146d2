"""A program in readable form: its buffers, barriers, parameters, grid and statements.

>>> from tinygpu.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.operation import matmul
>>> print(listing(Simt().program(matmul(), Chosen(LADDER["naive"]))).splitlines()[1])
  a        gmem      f32  [m,k] stride (ld_a,1)

Source: ``docs/model.md``, section "Terms".
"""

from __future__ import annotations

from tinygpu.program import Elect, For, ForTile, Program, Statement, When

__all__ = ["listing"]


def listing(program: Program) -> str:
    """Return the program's text."""
    lines = [f"program {program.name}: {program.operation}"]
    lines += [f"  {b}" for b in (*program.buffers, *program.barriers)]
    lines += [f"  {name} = {expression}" for name, expression in program.parameters]
    axes = " x ".join(f"{a.var} < {a.extent}" for a in program.grid)
    how = ", persistent" * bool(program.persistent) + ", early" * bool(program.early)
    lines.append(f"  grid {axes}, raster {program.raster}{how}")
    if program.cluster:
        lines.append("  cluster " + " x ".join(f"{v} < {n}" for v, n in program.cluster))
    for role in program.roles:
        copies = f" x {role.copies} ({role.copy})" if role.copy else ""
        regs = f", {role.registers} registers each" if role.copy and role.registers else ""
        lines.append(f"  {role.name}: {role.threads} threads{copies}{regs}")
        lines += _show(role.body, "    ")
    return "\n".join(lines)


def _show(body: tuple[Statement, ...], indent: str) -> list[str]:
    lines: list[str] = []
    for statement in body:
        match statement:
            case For(name, trips, inner, unrolled, start):
                how = " (unrolled)" if unrolled else ""
                lines.append(f"{indent}for {name} in {start}..{trips}{how}:")
                lines += _show(inner, indent + "  ")
            case ForTile(tile, _, inner, start, step):
                each = "" if str(start) == "0" and str(step) == "1" else f" from {start} by {step}"
                lines.append(f"{indent}for each tile {tile}{each}:")
                lines += _show(inner, indent + "  ")
            case When(index, bound, inner):
                lines.append(f"{indent}when {index} < {bound}:")
                lines += _show(inner, indent + "  ")
            case Elect(inner):
                lines.append(f"{indent}one thread:")
                lines += _show(inner, indent + "  ")
            case _:
                lines.append(f"{indent}{statement}")
    return lines
