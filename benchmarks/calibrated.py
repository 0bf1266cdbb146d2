"""What calibration finds on this GPU, with its run: ``python -m benchmarks.calibrated``.

It writes ``calibrated.json``: a row for each number of the device (``tinygpu.devices.device``), as
``tinygpu calibrate`` would write it, and the seconds that all took.  The numbers that come with the
package stay as they are: those of the time model are fitted together.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import FOLDER, write_tree
from tinygpu.codegen.run.calibrate import calibrate
from tinygpu.codegen.run.provenance import provenance
from tinygpu.devices.device import Device

__all__ = ["main", "rows"]


def rows(device: Device) -> list[dict[str, Any]]:
    """Return a row for each number.

    >>> from tinygpu.devices.device import load_device
    >>> [row for row in rows(load_device("h200")) if row["number"] == "sector_bytes"][0]["value"]
    32
    """
    return [
        {"number": name, "value": getattr(device, name), "kind": n.kind, "source": n.source}
        for name, n in device.numbers
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Calibrate, telling each number, and write the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibrated")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--name", default="h200", help="the device's name")
    given = parser.parse_args(arguments)
    record = provenance(f"python -m benchmarks.calibrated --name {given.name}")
    began = time.monotonic()

    def say(line: str) -> None:
        sys.stdout.write(f"{time.monotonic() - began:5.1f} s  {line}\n")
        sys.stdout.flush()

    found = calibrate(say, date=record["date"][:10], name=given.name)
    seconds = round(time.monotonic() - began, 1)
    tree = {"provenance": record, "arch": found.arch, "seconds": seconds, "rows": rows(found)}
    say(f"{write_tree(given.out / 'calibrated.json', tree).name}: written")


if __name__ == "__main__":
    main()
