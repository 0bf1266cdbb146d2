"""im2col: which pixels come, where they land, and what is refused.  The examples are Triton's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.ptx_im2col import IMAGES, Images, expected, kernel
from tinygpu.codegen.emulator import Memory, Module, Report, TensorMap, launch
from tinygpu.codegen.run.assemble import assemble
from tinygpu.errors import LaunchError, ProgramError


def run(given: Images, text: str = "") -> tuple[Report, np.ndarray]:
    memory, y = Memory(), np.zeros((given.pixels, given.channels), np.float32)
    x = given.array()
    at = memory.allocate(x, "x")
    held = TensorMap(at, "f32", x.shape[::-1], x.strides[-2::-1], (given.channels, given.pixels),
                     given.swizzle, 0.0, (given.lower, given.upper))  # fmt: skip
    arguments = [held, memory.allocate(y, "y")]
    return launch(Module.parse(text or kernel(given)), "k", 1, 32, arguments, memory), y


@pytest.mark.parametrize("name", IMAGES)
def test_pixels(name: str) -> None:
    """By a loop over pixels, for tensors of three to five dimensions; ptxas takes the kernel."""
    assert assemble(kernel(IMAGES[name]), "sm_90").bytes
    report, y = run(IMAGES[name])
    assert report.findings == ()
    np.testing.assert_array_equal(y, expected(IMAGES[name]))


@pytest.mark.parametrize(
    ("name", "first"),
    [("padded", [0, 0, 0, 0, 0, 1, 2, 3, 0, 5, 6, 7, 0, 9, 10, 11]), ("offset", range(1, 17)),
     ("two images", range(8, 24))],
)  # fmt: skip
def test_what_a_hopper_gpu_gave(name: str, first: list[int]) -> None:
    """The tutorial's expected values: images of 4 x 4 pixels that are numbered from 1."""
    np.testing.assert_array_equal(run(IMAGES[name])[1][:, 0], first)


def test_what_is_found() -> None:
    good = IMAGES["padded"]
    for fault, message in (
        (replace(good, start=(-2, -1)), "no pixel is at [0, -2, -1, 0]"),
        (replace(good, start=(-1, 3)), "no pixel is at [0, -1, 3, 0]"),
        (replace(good, offsets=(0, 256)), "offsets are too large: [0, 256]"),
    ):
        report, y = run(fault)
        assert any(f.kind == "address" and message in f.message for f in report.findings)
        assert not np.array_equal(y, expected(good))
    text = kernel(good)
    tile = text.replace(".im2col", ".tile").replace("[bar], {0, 0};", "[bar];")
    assert any("the mode is not" in f.message for f in run(good, tile)[0].findings)
    wait = next(line for line in text.splitlines() if line.startswith("W:"))
    assert "race" in run(good, text.replace(wait, ""))[0].kinds


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (", {0, 0};", ", {0};", "4 coordinates have 2 offsets"),
        (", {0, 0};", ";", "3 operands"),
        ("tensor.4d", "tensor.2d", ".im2col is not what follows"),
        (".im2col", ".im2col::w", ".im2col::w is not what follows"),
        (".im2col", ".im2col_no_offs", ".im2col_no_offs is not what follows"),
    ],
)
def test_what_is_refused(old: str, new: str, says: str) -> None:
    text = kernel(IMAGES["padded"])
    assert old in text
    with pytest.raises(ProgramError, match="PTX line") as caught:
        run(IMAGES["padded"], text.replace(old, new))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "box", "corners", "law"),
    [
        ((32, 4, 2), (32, 1025), ((0,), (0,)), "1 to 1024 pixels"),
        ((512, 4, 2), (260, 8), ((0,), (0,)), "1 to 256 elements"),
        ((32, 4, 2), (32, 8), ((0, 0), (0, 0)), "two corners"),
        ((32, 4, 2), (32, 8), ((0,),), "two corners"),
        ((32, 4, 4, 2), (32, 8), ((0, -129), (0, 0)), "two corners"),
        ((32, 4), (32, 8), ((0,), (0,)), "rank is 3 to 5"),
        ((32, 4, 4, 2), (32, 4, 4, 2), ((0, 0), (0, 0)), "rank is 3 to 5"),
    ],
)
def test_maps_that_the_driver_refuses(
    shape: tuple[int, ...], box: tuple[int, ...], corners: tuple[tuple[int, ...], ...], law: str
) -> None:
    strides = tuple(int(4 * np.prod(shape[: n + 1])) for n in range(len(shape) - 1))
    with pytest.raises(LaunchError, match=law):
        TensorMap(0, "f32", shape, strides, box, corners=corners)
