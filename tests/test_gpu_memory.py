"""A GPU without memory is one line with the way out, in a kernel's caller and in a worker."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, ClassVar

import pytest

from tinygpu.codegen.run.launch import Kernel
from tinygpu.errors import LaunchError
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import matmul

SERVER = """
from tinygpu.codegen.run.worker import serve

class OutOfMemoryError(Exception):
    pass

def handle(request):
    raise OutOfMemoryError("Out of memory allocating 9 bytes\\nand more")

serve(handle)
"""


class OutOfMemoryError(MemoryError):
    """As CuPy's."""


@pytest.mark.parametrize("error", [OutOfMemoryError("Out of memory\nand more"), KeyError("other")])
def test_a_new_output(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(Simt().program(matmul("f32"), Chosen(LADDER["naive"])), arch="sm_90a")

    def none(*_: Any) -> None:
        raise error

    class Array:
        """What has the interface of a GPU's array, and no memory behind it."""

        __cuda_array_interface__: ClassVar = {
            "shape": (64, 64), "typestr": "<f4", "data": (256, False), "version": 3,
            "strides": None,
        }  # fmt: skip

    monkeypatch.setattr(Kernel, "_new_output", lambda kernel, inputs: none)
    with pytest.raises((LaunchError, KeyError)) as raised:
        kernel.output([Array(), Array()], None)
    if isinstance(error, OutOfMemoryError):
        assert str(raised.value).startswith("c: GPU out of memory (Out of memory); free some")
    else:
        assert raised.value is error


def test_a_worker() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVER], input='{"do": "x"}\n', capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    said = json.loads(done.stdout)["failed"]
    assert said.startswith("GPU out of memory (Out of memory allocating 9 bytes); free some")
