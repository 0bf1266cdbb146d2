"""The command ``tinygpu-ptx`` of the wheel of that name; ``tinygpu ptx`` has the same options."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, BooleanOptionalAction
from pathlib import Path
from typing import NoReturn

from .checking import check_file, lines, sarif, workflow_commands
from .errors import TinyGpuError

__all__ = ["main", "options"]


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        sys.exit(_complain(f"{message}; see {self.prog} --help"))


def options() -> ArgumentParser:
    """Return what reads the command line."""
    reader = _Parser(
        "tinygpu-ptx",
        description="Run a kernel on arrays, without a GPU; say what is wrong with it, by line.",
        epilog="Exits with 0 if nothing is found, 1 for errors, 2 if the kernel could not be run, "
        "3 for warnings alone.",
        allow_abbrev=False,
    )
    add = reader.add_argument
    add("command", choices=("check",))
    add("file", type=Path, help="A file of PTX, of nvcc, Triton or by hand.")
    add("--kernel", default="", help="The kernel; the first, if it is left out.")
    add("--grid", default="1", help="CTAs: 8, or 4,2,1.")
    add("--block", default="32", help="Threads of a CTA: 128, or 32,4.")
    add("--cluster", default="1", help="CTAs of a cluster.")
    add("--smem", type=int, default=0, help="Bytes of dynamic shared memory.")
    add("--arg", action="append", default=[], help=(
        "NAME=VALUE, once for each parameter: a .npy file, f32[1024] or float[1024] for so many "
        "zeros of a type, f32[1024]:random, or a number. By the parameters' names, else in their "
        "order."))  # fmt: skip
    add("--save", action="append", default=[],
        help="NAME=FILE.npy: write an argument's array there.")  # fmt: skip
    add("--order", default="late,early,random",
        help="When asynchronous operations complete: late,early,random:20.")  # fmt: skip
    add("--lanes", action=BooleanOptionalAction,
        help="Threads as agents, which finds races inside a warp; small CTAs have it.")  # fmt: skip
    add("--global", dest="races", action=BooleanOptionalAction, default=True,
        help="Look for races in global memory.")  # fmt: skip
    add("--limit", type=int, default=5_000_000,
        help="Instructions of groups that a run may have.")  # fmt: skip
    add("--sarif", type=Path, help="Write the findings as SARIF there.")
    add("--annotations", choices=("github",),
        help="Print the findings as a CI shows them beside the source.")  # fmt: skip
    add("--json", action="store_true", help="Print JSON, for machines.")
    return reader


def main() -> NoReturn:
    """Run the command line and exit with its status; a mistake is one line on standard error."""
    given = vars(options().parse_args())
    del given["command"]
    file, report, as_json = given["file"], given.pop("sarif"), given.pop("json")
    told_as = workflow_commands if given.pop("annotations") else lines
    try:
        checked = check_file(**given)
        if report is not None:
            report.write_text(json.dumps(sarif(checked, str(file)), indent=2), encoding="utf-8")
        told = [json.dumps(checked.json, indent=2)] if as_json else told_as(checked, file)
        print(*told, sep="\n")
    except TinyGpuError as error:
        sys.exit(_complain(str(error)))
    except OSError as error:
        path = f"{error.filename}: " if error.filename else ""
        sys.exit(_complain(f"{path}{error.strerror or error}"))
    except MemoryError:
        sys.exit(_complain("memory: not enough; give smaller arrays"))
    except KeyboardInterrupt:
        _complain("interrupted")
        sys.exit(130)
    sys.exit(checked.status)


def _complain(text: str) -> int:
    print(f"error: {' '.join(text.split())}", file=sys.stderr)
    return 2
