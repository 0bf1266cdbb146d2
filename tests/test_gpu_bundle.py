"""Bundles on a GPU: made by the command, called by their own loader where there is no tinyGPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parent.parent
K, N = 512, 768
MAKE = ["dispatch", "matmul", "-n", str(N), "-k", str(K), "-m", "1:700", "--points", "7"]
MAKE += ["--kernels", "3", "--candidates", "6", "--machine", "hopper"]

ALONE = '''
"""What a client does: argv[1] is the bundle, and tinyGPU cannot be imported."""
import statistics, sys, time
path = sys.argv[1]
sys.path.insert(0, path)
import cupy, numpy as np
from loader import LaunchError, load_bundle

cupy.zeros(1)
began = time.perf_counter()
bundle = load_bundle(path)
rng = np.random.default_rng(0)
shape = bundle.tree["shapes"][0]
N, K = shape["n"], shape["k"]

def bits(*shape):
    wide = rng.standard_normal(shape).astype(np.float32)
    return cupy.asarray((wide.view(np.uint32) >> 16).astype(np.uint16))

def wide(x):
    return (x.get().astype(np.uint32) << 16).view(np.float32).astype(np.float64)

weight = bits(N, K)
x = bits(300, K)
loaded = time.perf_counter() - began
began = time.perf_counter()
bundle(x, weight)
cupy.cuda.Device().synchronize()
first = time.perf_counter() - began
assert first < 0.1, f"the first call took {first} s"
served = set()
for m in (1, 2, 3, 17, 64, 65, 300, 511, 700, 1234):
    x = bits(m, K)
    wanted = wide(x) @ wide(weight).T
    served.add(bundle.which(m=m, n=N, k=K)["kernel"])
    for _ in range(6):  # the fifth is a graph
        y = cupy.full((m, N), 0x7FC0, np.uint16)
        assert bundle(x, weight, out=y) is y
        assert np.abs(wide(y) - wanted).max() < 0.01 * np.abs(wanted).max(), m
    assert np.abs(wide(bundle(x, weight)) - wanted).max() < 0.01 * np.abs(wanted).max()
assert len(served) > 1, served
timed = load_bundle(path, rule="first call")
assert np.abs(wide(timed(x, weight)) - wanted).max() < 0.01 * np.abs(wanted).max()

def refused(*arrays, **how):
    try:
        bundle(*arrays, **how)
    except LaunchError as error:
        assert "\\n" not in str(error)
        return str(error)
    raise AssertionError("it was not refused")

assert "dtype f32" in refused(x.astype(np.float32), weight)
assert "axis k" in refused(x[:, :64], weight)
assert "not on a GPU" in refused(x.get(), weight)
assert "multiple of 16 B" in refused(x[:, 1:], weight[:, 1:])
fell = []
other = load_bundle(path, fallback=lambda *arrays, **how: fell.append(arrays))
other(x[:, 1:], weight[:, 1:])
assert len(fell) == 1

def host(run, calls=300):
    times = []
    for _ in range(9):
        cupy.cuda.Device().synchronize()
        began = time.perf_counter()
        for _ in range(calls // 10):
            run()
        times.append((time.perf_counter() - began) / (calls // 10))
    return statistics.median(times)

assert host(lambda: bundle.choose(m=300, n=N, k=K)) < 5e-6
y = bundle(x, weight)
print("host us", 1e6 * host(lambda: bundle(x, weight, out=y)))
try:
    import tinygpu
except ImportError:
    pass
else:
    raise AssertionError("tinygpu is there")
print("right")
'''

TORCH = '''
"""The same of PyTorch: tensors, streams, graphs, an operator, compiled."""
import sys
import torch
sys.path.insert(0, sys.argv[1])
from loader import load_bundle

bundle = load_bundle(sys.argv[1])
shape = bundle.tree["shapes"][0]
N, K = shape["n"], shape["k"]
torch.manual_seed(0)
x = torch.randn(70, K, device="cuda").bfloat16()
weight = torch.randn(N, K, device="cuda").bfloat16()

def check(y, x=x):
    wanted = x.double() @ weight.double().T
    assert y.dtype == torch.bfloat16
    assert (y.double() - wanted).abs().max() < 0.01 * wanted.abs().max()

for _ in range(7):
    check(bundle(x, weight))
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    y = bundle(x, weight)
side.synchronize()
check(y)
for run in (lambda y: bundle(x, weight, out=y), lambda y: y.copy_(op(x, weight))):
    op = bundle.torch_op("tinygpu_test::linear") if "op" not in globals() else op
    y = torch.empty(70, N, device="cuda", dtype=torch.bfloat16)
    run(y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(y)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    check(y)
told = torch.library.opcheck(op.default, (x, weight))
assert set(told.values()) == {"SUCCESS"}, told
for how in ({}, {"mode": "reduce-overhead"}, {"dynamic": True}):
    compiled = torch.compile(lambda x: op(x, weight) * 1, **how)
    for _ in range(3):
        y = compiled(x).clone()
    check(y)
for bad in (x.cpu(), x.float(), x.T.contiguous().T):
    try:
        bundle(bad, weight)
    except Exception as error:
        assert type(error).__name__ == "LaunchError", error
    else:
        raise AssertionError("it was not refused")
print("right")
'''


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that the command measured."""
    folder = tmp_path_factory.mktemp("dispatch")
    words = [sys.executable, "-m", "tinygpu", *MAKE, "--out", str(folder / "bundle")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert "measured a second time" in done.stdout
    return folder / "bundle"


def client(script: str, path: Path, folder: Path) -> str:
    """Run a script that cannot import tinyGPU."""
    (folder / "client.py").write_text(script)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "client.py", str(path)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_measured_set(made: Path) -> None:
    """Every shape was measured twice, and the bundle's rule is not slower than any table's."""
    tree = json.loads((made / "bundle.json").read_text())
    assert all(all(row["measured"]) and all(row["scored"]) for row in tree["shapes"])
    assert tree["measured_on"]["device"]
    assert all(row["peer_seconds"] for row in tree["shapes"])
    assert tree["slowdown"] >= tree["bound"] >= 1


def test_alone(made: Path, tmp_path: Path) -> None:
    """With CuPy and NumPy: right at every size, refused where it must be, quick."""
    assert "right" in client(ALONE, made, tmp_path)


def test_with_pytorch(made: Path, tmp_path: Path) -> None:
    """Tensors, streams, graphs; the operator passes opcheck and is compiled."""
    pytest.importorskip("torch")
    assert "right" in client(TORCH, made, tmp_path)


def test_a_llama_block(tmp_path: Path) -> None:
    """The example runs on its six bundles, of kernels that the model alone chose."""
    pytest.importorskip("torch")
    matmul = ["matmul", "-m", "1,64,8192", "--machine", "hopper"]
    heads = ["attention", "--dtype", "bf16", "--heads", "32", "--kv-heads", "8", "-d", "128"]
    for name, given in {
        "qkv": [*matmul, "--layer", "qkv"],
        "sum": [*matmul, "--scale", "--layer", "o", "--layer", "down"],
        "gate": [*matmul, "--gate", "silu", "-n", "14336", "-k", "4096"],
        "norm": ["rmsnorm", "--dtype", "bf16", "-i", "1,8192", "-j", "4096"],
        "prefill": [*heads, "--causal", "-b", "1", "-m", "2048", "-n", "2048"],
        "decode": [*heads, "-b", "64", "-m", "1", "-n", "1024"],
    }.items():
        command = ["dispatch", *given, "--no-measure", "--out", str(tmp_path / name)]
        done = subprocess.run(
            [sys.executable, "-m", "tinygpu", *command], capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
    script = [sys.executable, str(ROOT / "examples" / "llama_block.py"), str(tmp_path)]
    out = ["--out", str(tmp_path / "rows.json")]
    done = subprocess.run([*script, *out], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert len(rows) == 12
