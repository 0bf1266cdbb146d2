"""A bundle: a few kernels in a folder, and which of them serves a shape.

    from loader import load_bundle             # the bundle's own file; it needs NumPy and CuPy
    linear = load_bundle("bundle")             # a folder, or a .zip of it
    c = linear(a, b)                           # by the shapes of a and b
    linear.which(m=3500, n=4096, k=4096)       # the kernel's name, its rule and interval
    op = linear.torch_op("mine::linear")       # a torch.library operator

``bundle.json`` has, for every kernel, its contract, schedule and files; the measurements; and the
*rules*, each a table: for sizes of the other axes, the ends of the intervals of one axis, and the
kernel of each.  Other sizes of the other axes go to the nearest shape of the table (the least sum
of distances of logarithms).  The rule "first call" times the kernels on a shape's first arrays.
A kernel that cannot take the arrays is left out, and the next nearest serves them; one that does
not load or start on this GPU is left out from then on, which a warning says once.  Where none is
left, ``fallback(*inputs, out=out, stream=stream)`` is called, if there is one.

Every file is held against its hash, and nothing is unpickled or executed.

Source: FIPS 180-4 (SHA-256).
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
import zipfile
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tinygpu.codegen.runtime.contract import Contract, sizes_of
from tinygpu.codegen.runtime.function import Function, device_arch
from tinygpu.codegen.runtime.operator import torch_operator
from tinygpu.codegen.runtime.steps import check_steps
from tinygpu.codegen.runtime.views import View, reader, view
from tinygpu.errors import KernelError, LaunchError

__all__ = ["BUNDLE_FORMAT", "FIRST_CALL", "Bundle", "digest", "load_bundle", "sealed"]

BUNDLE_FORMAT = 1
FIRST_CALL = "first call"
_MANIFEST = "bundle.json"
_MOST_LAUNCHES = 4096
_TRIALS = 5
_AGAIN = "copy it again from where it was made"


def digest(data: bytes) -> str:
    """Return the SHA-256 of bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def sealed(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest with its own hash."""
    rest = {name: value for name, value in tree.items() if name != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return {**rest, "sha256": digest(text.encode())}


def load_bundle(
    path: str | Path, *, rule: str = "", fallback: Callable[..., Any] | None = None
) -> Bundle:
    """Read a folder or a .zip of one, and hold every part against its hash.

    ``rule`` is another than the bundle's own.  It needs no GPU.  Raises LaunchError for what is no
    bundle, is damaged, or is of a newer format.
    """
    read = _reading(Path(path))
    try:
        tree = json.loads(read(_MANIFEST))
        if tree["format"] > BUNDLE_FORMAT:
            raise LaunchError(
                f"bundle {path}: format {tree['format']}, and this loader reads {BUNDLE_FORMAT}; "
                "use the loader.py that lies in the bundle, or a newer tinygpu"
            )
        if sealed(tree)["sha256"] != tree["sha256"]:
            raise LaunchError(f"bundle {path}: {_MANIFEST} was altered; {_AGAIN}")
        code = {}
        for name, wanted in tree["files"].items():
            code[name] = read(name)
            if digest(code[name]) != wanted:
                raise LaunchError(f"bundle {path}: {name!r} was altered; {_AGAIN}")
        rule = rule or tree["rule"]
        if rule not in (*tree["rules"], FIRST_CALL):
            known = ", ".join(map(repr, (*tree["rules"], FIRST_CALL)))
            raise LaunchError(f"bundle {path}: it has no rule {rule!r}; known are {known}")
        return Bundle(tree, code, rule, fallback)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise LaunchError(f"bundle {path}: {_MANIFEST} is damaged ({error!r}); {_AGAIN}") from None


def _reading(path: Path) -> Callable[[str], bytes]:
    """Return what reads a part of a folder or of a .zip."""
    packed = zipfile.is_zipfile(path)
    if not packed and not path.is_dir():
        damaged = f"it is no .zip, or a damaged one; {_AGAIN}"
        raise LaunchError(f"bundle {path}: {damaged if path.exists() else 'there is none'}")

    def read(name: str) -> bytes:
        try:
            if packed:
                with zipfile.ZipFile(path) as file:
                    return file.read(name)
            return (path / name).read_bytes()
        except (OSError, KeyError):
            raise LaunchError(f"bundle {path}: {name!r} is missing; {_AGAIN}") from None
        except Exception as error:  # zipfile's and those of every decompressor
            raise LaunchError(f"bundle {path}: {name!r}: {error!r}; {_AGAIN}") from None

    return read


class Bundle:
    """Kernels of one operation that serve many shapes; see the module's text.

    ``tree`` is ``bundle.json``, ``code`` the files by their names.
    """

    def __init__(
        self,
        tree: Mapping[str, Any],
        code: Mapping[str, bytes],
        rule: str,
        fallback: Callable[..., Any] | None,
    ) -> None:
        """Take what ``load_bundle`` read."""
        self.tree, self.code, self.rule, self.fallback = tree, code, rule, fallback
        self.names = [kernel["name"] for kernel in tree["kernels"]]
        self.functions = [
            Function(Contract.of(kernel["contract"]), code[kernel["cubin"]])
            for kernel in tree["kernels"]
        ]
        self.along: str = tree["along"]
        self.axes: tuple[str, ...] = tuple(tree["axes"])
        self._others = tuple(axis for axis in self.axes if axis != self.along)
        table = tree["rules"].get(rule, ())
        self._table = {tuple(row["at"]): (row["upto"], row["kernels"]) for row in table}
        self._found: dict[tuple[int, ...], list[int]] = {}
        self._starts: dict[Any, tuple[int, Any]] = {}
        self._refusals: dict[Any, LaunchError | None] = {}
        self._failed: dict[int, KernelError] = {}
        self._said: set[int] = set()
        self._on_its_gpu = False

    def __call__(self, *inputs: Any, out: Any = None, stream: Any = None, **scalars: float) -> Any:
        """Compute the output of these inputs with the kernel of their shapes.

        As a call of a ``Function`` does; raises LaunchError where no kernel takes the arrays or
        starts, and there is no fallback, and where this process's context is lost.
        """
        if out is None:
            out = self.functions[0].output(inputs, stream)
        arrays = (*inputs, *self.functions[0].contract.written(out))
        key: Any = tuple([reader(type(array))(array) for array in arrays])
        if scalars:
            key += (*scalars, self.functions[0].bits(scalars))
        known = self._starts.get(key)
        if known is not None:
            number, start = known
            try:
                start(stream)
                return out
            except KernelError as error:
                self._fail(number, error)
        found = self._started(arrays, scalars, stream)
        if isinstance(found, LaunchError):  # no kernel takes them
            return self._fall_back(found, inputs, out, stream, scalars)
        if None not in key:
            if len(self._starts) >= _MOST_LAUNCHES:
                self._starts.clear()
            self._starts[key] = found
        return out

    def __str__(self) -> str:
        tree = self.tree
        said = (
            f"{tree['operation']}, {len(self.names)} kernels for {tree['arch']}, rule {self.rule}"
        )
        served = (
            ", ".join(f"{axis} {size}" for axis, size in zip(self._others, at, strict=True))
            + f": {self.along} up to "
            + ", ".join(f"{end} {self.names[k]}" for end, k in zip(upto, kernels, strict=True))
            for at, (upto, kernels) in self._table.items()
        )
        return "\n".join((said, *served))

    def choose(self, **sizes: int) -> int:
        """Return the number of the kernel that the rule gives these sizes."""
        row = self._table.get(tuple([sizes[axis] for axis in self._others]))
        if row is None:
            return self._nearest(sizes)[0]
        upto, kernels = row
        return int(kernels[min(bisect_left(upto, sizes[self.along]), len(kernels) - 1)])

    def which(self, **sizes: int) -> dict[str, Any]:
        """Return the kernel's name at these sizes, and the interval of sizes that it serves."""
        if set(sizes) != set(self.axes) or any(size < 1 for size in sizes.values()):
            raise LaunchError(f"bundle: give {', '.join(self.axes)}, each at least 1; got {sizes}")
        chosen = self.choose(**sizes)
        row = self._table.get(tuple(sizes[axis] for axis in self._others))
        told = {"kernel": self.names[chosen], "number": chosen, "rule": self.rule}
        if row is None:
            return {**told, "nearest": self._nearest(sizes)[1]}
        upto, kernels = row
        at = min(bisect_left(upto, sizes[self.along]), len(kernels) - 1)
        first = last = at
        while first and kernels[first - 1] == chosen:
            first -= 1
        while last + 1 < len(kernels) and kernels[last + 1] == chosen:
            last += 1
        low = upto[first - 1] + 1 if first else 1
        return {**told, "interval": [low, upto[last] if last + 1 < len(kernels) else None]}

    def torch_op(self, name: str) -> Any:
        """Register it as the PyTorch operator ``namespace::name``, and return that.

        See ``torch_operator``.
        """
        return torch_operator(name, self, self.functions[0].contract)

    def _started(
        self, arrays: Sequence[Any], scalars: Mapping[str, float], stream: Any
    ) -> tuple[int, Any] | LaunchError:
        """Start a kernel on the arrays: the first in order that takes them and starts.

        Returns its number and what starts it again; or why the first choice cannot.
        """
        if not self._on_its_gpu:
            arch = device_arch()
            if arch != self.tree["arch"]:
                raise LaunchError(
                    f"bundle: its kernels are for {self.tree['arch']}, and this GPU is {arch}; "
                    "make one for this GPU: tinygpu dispatch"
                )
            self._on_its_gpu = True
        first = self.functions[0].contract
        views = [view(a.name, x) for a, x in zip(first.arguments, arrays, strict=True)]
        sizes = sizes_of(first, [v.shape for v in views])
        legal: Iterable[int] = (n for n in self._in_order(sizes) if not self._refusal(n, views))
        if self.rule == FIRST_CALL:
            every = list(legal)
            legal = self._by_time((*sizes.values(), *every), every, arrays, scalars, stream)
        for number in legal:
            try:
                start = self.functions[number].start(tuple(arrays), scalars)
                start(stream)
            except KernelError as error:
                self._fail(number, error)
                continue
            self._say_failed(self.names[number])
            return number, start
        why = self._refusal(next(self._in_order(sizes)), views)
        assert why is not None
        return why

    def _fail(self, number: int, error: KernelError) -> None:
        """Leave a kernel out from now on, with all that is known to start it."""
        self._failed[number] = error
        self._starts.clear()

    def _say_failed(self, instead: str) -> None:
        """Warn, once for each kernel that failed, and say what runs instead."""
        for number in sorted(self._failed.keys() - self._said):
            self._said.add(number)
            why = f"{self.names[number]} does not run here: {self._failed[number]}"
            warnings.warn(f"bundle: {why}; {instead} serves instead", RuntimeWarning, stacklevel=4)

    def _refusal(self, number: int, views: Sequence[View]) -> LaunchError | None:
        """Return why a kernel failed or cannot take arrays of these views; known by form."""
        if number in self._failed:
            return self._failed[number]
        key = (number, *(v.form for v in views))
        if key not in self._refusals:
            if len(self._refusals) >= _MOST_LAUNCHES:
                self._refusals.clear()
            try:
                check_steps(self.functions[number].contract, views)
                self._refusals[key] = None
            except LaunchError as error:
                self._refusals[key] = error
        return self._refusals[key]

    def _in_order(self, sizes: Mapping[str, int]) -> Iterator[int]:
        """Yield all kernels, that of the rule first and then by the nearest shape."""
        first = self.choose(**sizes)
        yield first
        near = sorted(self.tree["shapes"], key=lambda shape: self._distance(sizes, shape))
        order = dict.fromkeys((*(s["kernel"] for s in near), *range(len(self.names))))
        yield from (number for number in order if number != first)

    def near(self, **sizes: int) -> Mapping[str, Any]:
        """Return the manifest's row of the shape that is nearest to these sizes."""
        row: Mapping[str, Any] = min(
            self.tree["shapes"], key=lambda shape: self._distance(sizes, shape)
        )
        return row

    def _nearest(self, sizes: Mapping[str, int]) -> tuple[int, dict[str, int]]:
        shape = self.near(**sizes)
        return int(shape["kernel"]), {axis: shape[axis] for axis in self.axes}

    def _distance(self, sizes: Mapping[str, int], shape: Mapping[str, int]) -> float:
        return sum(abs(math.log2(sizes[axis] / shape[axis])) for axis in self.axes)

    def _by_time(
        self,
        at: tuple[int, ...],
        legal: Sequence[int],
        arrays: Sequence[Any],
        scalars: Mapping[str, float],
        stream: Any,
    ) -> list[int]:
        """Time kernels on the arrays, once for sizes and what is legal; the fastest is first."""
        if at in self._found:
            return self._found[at]
        seconds = {}
        for number in legal:
            try:
                start = self.functions[number].start(tuple(arrays), scalars)
                seconds[number] = start.seconds(_TRIALS, stream)
            except KernelError as error:
                self._fail(number, error)
        self._found[at] = sorted(seconds, key=lambda number: seconds[number])
        return self._found[at]

    def _fall_back(
        self,
        error: LaunchError,
        inputs: Sequence[Any],
        out: Any,
        stream: Any,
        scalars: Mapping[str, float],
    ) -> Any:
        if self.fallback is None:
            raise LaunchError(f"bundle: none of {len(self.names)} kernels takes these: {error}")
        self._say_failed("the fallback")
        return self.fallback(*inputs, out=out, stream=stream, **scalars)
