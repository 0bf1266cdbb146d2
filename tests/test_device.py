from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinygpu.devices.device import DEVICES, NUMBERS, Device, Errors, Number, load_device, to_json
from tinygpu.errors import DeviceError

FOLDER = Path(load_device.__code__.co_filename).parent


@pytest.mark.parametrize("name", DEVICES)
def test_round_trip(name: str, tmp_path: Path) -> None:
    """load(save(x)) = x, by path as by name, and each number has a kind and a source."""
    device = load_device(name)
    (tmp_path / "device.json").write_text(to_json(device))
    assert load_device(tmp_path / "device.json") == device
    assert load_device(str(tmp_path / "device.json")) == device
    assert hash(load_device(name)) == hash(device)
    assert list(device.provenance) == list(NUMBERS)
    for field, number in device.numbers:
        assert getattr(device, field) == number.value
        assert number.source


@pytest.mark.parametrize("name", DEVICES)
def test_the_numbers_agree_with_each_other(name: str) -> None:
    """What follows from other numbers does."""
    d = load_device(name)
    assert d.smem_bytes_per_cta_max + d.smem_reserved_bytes_per_cta == d.smem_bytes_per_sm
    assert d.smem_bytes_per_sm < d.l2_bytes < d.dram_bytes
    assert d.smem_latency_cycles < d.l1_latency_cycles < d.l2_latency_cycles < d.dram_latency_cycles
    issue = 32 * d.warp_schedulers_per_sm * d.issue_per_cycle_per_scheduler
    assert d.fma_f64_per_cycle_per_sm <= d.fma_f32_per_cycle_per_sm <= issue
    assert d.registers_per_sm // d.threads_per_sm >= 32
    assert d.dram_bytes_per_second < d.l2_bytes_per_cycle * d.clock_hz


def test_every_file_is_listed() -> None:
    """DEVICES names the files that there are."""
    assert sorted(p.stem for p in FOLDER.glob("*.json")) == sorted(DEVICES)


def test_known_facts() -> None:
    """The H200: 66.9 TFLOP/s of fp32 at boost; fp64 is half of it there, 1/64 on a GeForce."""
    h200, rtx = load_device("h200"), load_device("rtx3060")
    flops = 2 * h200.fma_f32_per_cycle_per_sm * h200.sms * h200.clock_hz
    assert flops == pytest.approx(66.9e12, rel=1e-3)
    assert h200.fma_f32_per_cycle_per_sm == 2 * h200.fma_f64_per_cycle_per_sm
    assert rtx.fma_f32_per_cycle_per_sm == 64 * rtx.fma_f64_per_cycle_per_sm


@given(st.sampled_from(sorted(NUMBERS)), st.integers(1, 2**40))
def test_with_values(field: str, value: int) -> None:
    """with_values changes that number and its source, and no other."""
    device = load_device("h200")
    changed = device.with_values(kind="measured", source="a run", **{field: value})
    assert getattr(changed, field) == value
    assert changed.provenance[field] == Number(value, "measured", "a run")
    for other in NUMBERS.keys() - {field}:
        assert changed.provenance[other] == device.provenance[other]
    assert getattr(load_device("h200"), field) == getattr(device, field)


def tree() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / "h200.json").read_text(encoding="utf-8"))
    return loaded


@pytest.mark.parametrize("field", NUMBERS)
def test_missing_number(field: str, tmp_path: Path) -> None:
    """A file that lacks a number says which."""
    bad = tree()
    del bad["numbers"][field]
    path = tmp_path / "device.json"
    path.write_text(json.dumps(bad), encoding="utf-8")
    with pytest.raises(DeviceError, match=f"number {field} is missing"):
        load_device(path)


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("value", -1, "more than 0"),
        ("value", 0, "more than 0"),
        ("value", "132", "finite number"),
        ("value", True, "finite number"),
        ("value", None, "finite number"),
        ("value", float("inf"), "finite number"),
        ("value", 131.5, "whole number"),
        ("kind", "guess", "known are spec, measured, fitted"),
        ("source", "", "no source"),
    ],
)
def test_bad_number(part: str, value: object, message: str, tmp_path: Path) -> None:
    """A number that is none is refused in one line that names it."""
    bad = tree()
    bad["numbers"]["sms"][part] = value
    path = tmp_path / "device.json"
    path.write_text(json.dumps(bad), encoding="utf-8")
    with pytest.raises(DeviceError, match=message) as caught:
        load_device(path)
    assert "sms" in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.integers(0, 5000))
def test_truncated(length: int) -> None:
    """A file cut anywhere is refused with DeviceError."""
    import tempfile

    text = (FOLDER / "h200.json").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cut.json")
        path.write_text(text[: min(length, len(text) - 3)], encoding="utf-8")
        with pytest.raises(DeviceError, match="truncated"):
            load_device(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "no .*format"),
        ('{"format": "tinygpu schedule"}', "no .*format"),
        ('{"format": "tinygpu device", "version": 9}', "version 9; this tinygpu reads version 4"),
        ('{"format": "tinygpu device", "version": 3}', "version 3; .* write the file again"),
        ('{"format": "tinygpu device", "version": 4}', "field name is missing"),
        (
            '{"format":"tinygpu device","version":4,"name":"x","arch":"sm_80","numbers":{"sms":1}}',
            "value, kind",
        ),
    ],
)
def test_other_files(text: str, message: str, tmp_path: Path) -> None:
    """Something else than a device file is told apart."""
    path = tmp_path / "device.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DeviceError, match=message):
        load_device(path)


def test_errors_round_trip(tmp_path: Path) -> None:
    """Other numbers lose them."""
    h200 = load_device("h200")
    errors = {"hopper": Errors(0.05, -0.01, 40), "simt": Errors(0.11, 0.02, 12)}
    found = Device.of("h200", h200.arch, h200.provenance, errors)
    (tmp_path / "new.json").write_text(to_json(found))
    assert load_device(tmp_path / "new.json") == found
    assert "error of hopper                  5.1 %            40 kernels, bias -0.010" in str(found)
    assert found.with_values(sms=114).errors == ()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"median": 0.1, "bias": 0}, "count is missing"),
        ({"median": -0.1, "bias": 0, "count": 3}, "from 0 on"),
        ({"median": "x", "bias": 0, "count": 3}, "from 0 on"),
        ({"median": 0.1, "bias": 0, "count": 0}, "from 1 on"),
        (3, "errors of simt is 3"),
    ],
)
def test_bad_errors(entry: object, message: str, tmp_path: Path) -> None:
    bad = tree() | {"version": 4, "errors": {"simt": entry}}
    (tmp_path / "device.json").write_text(json.dumps(bad), encoding="utf-8")
    with pytest.raises(DeviceError, match=message) as caught:
        load_device(tmp_path / "device.json")
    assert "\n" not in str(caught.value)


def test_unknown_names(tmp_path: Path) -> None:
    """A name or number that is unknown brings the nearest; a file that is not there, the way."""
    with pytest.raises(DeviceError, match="did you mean h200"):
        load_device("h20")
    with pytest.raises(DeviceError, match="did you mean sms"):
        load_device("h200").with_values(sm=3)
    with pytest.raises(DeviceError, match="No such file"):
        load_device(tmp_path / "none.json")
    with pytest.raises(DeviceError, match="sm_90a"):
        Device.of("x", "hopper", load_device("h200").provenance)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DeviceError, match="UTF-8"):
        load_device(tmp_path / "binary.json")
