from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.fake_gpu import Card, Gpu

GOLDEN = Path(__file__).parent / "golden"

# Before NumPy is imported, and for commands that tests start: matrices are small here, and threads
# that wait for the next one spin, beside the other worker's.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

settings.register_profile(
    "tinygpu",
    deadline=None,
    derandomize="CI" in os.environ,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],  # says more of the machine than of the test
)
settings.load_profile("tinygpu")


def why_no_gpu() -> str | None:
    """The reason why nothing can run on a GPU here, or None if it can."""
    if find_spec("cupy") is None:
        return "CuPy is not installed (pip install .[gpu])"
    import cupy

    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # every driver fault has its own type
        return f"CUDA finds no usable GPU: {error}"
    return None if count else "this machine has no GPU"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write tests/golden anew instead of comparing"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    needing = [item for item in items if item.get_closest_marker("gpu")]
    reason = why_no_gpu() if needing else None
    if reason is not None:
        for item in needing:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """Let the collector of cycles leave what is imported alone, and come seldom.

    Terms are many small objects without a cycle: it looked at them again and again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


@pytest.fixture(autouse=True)
def no_card(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands take the device of the card that is there: tests say the same on each machine."""
    if not request.node.get_closest_marker("gpu"):
        here = "tinygpu.codegen.run.provenance.device_and_driver"
        monkeypatch.setattr(here, lambda: ("none", "none"))


@pytest.fixture(scope="session", autouse=True)
def commands_built_once() -> Iterator[None]:
    """Build the command line once: Typer makes all commands anew for each that a test runs."""
    import typer.main

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", cache(typer.main.get_command))
        yield


@pytest.fixture
def believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands believe what terms compute."""
    from tests.believed import believe

    believe(monkeypatch)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    """Pretend that there is a GPU, or what there is of one."""
    from tests.fake_gpu import Card

    return Card(monkeypatch)


@pytest.fixture
def fake(card: Card) -> Gpu:
    """Return a GPU that kernels are launched on and that keeps what it is told."""
    return card.driven()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``golden("matmul/naive.ptx", text)`` holds text against tests/golden/matmul/naive.ptx."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no golden file {name}; write it with pytest --update-golden"
        assert text == path.read_text(encoding="utf-8")

    return compare
