"""The tables of the pages, from the result files: ``python -m benchmarks.tables``.

A table of a page stands between two comments, and so does a sentence with measured numbers:

    <!-- table hopper -->

    ...

    <!-- end -->

The command writes each of them anew; a test holds that nothing would change.  A ratio is a peer's
time over ours: above 1, this project is faster.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.attention_cycles import CASES
from benchmarks.peers import FOLDER
from tinygpu.cli.console import time_text
from tinygpu.cli.shapes import LAYERS
from tinygpu.devices.device import load_device

__all__ = ["PAGES", "TABLES", "main", "renewed"]

ROOT = Path(__file__).parent.parent
_NAMES = (
    "README.md", "docs/results.md", "docs/measuring.md", "docs/model-concurrency.md",
    "docs/attention.md", "docs/grouped.md", "docs/plans.md",
)  # fmt: skip
PAGES = tuple(ROOT / page for page in _NAMES)
"""The pages that have such tables."""
_PLACE = re.compile(r"(<!-- table ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)

Row = Mapping[str, Any]


def main() -> None:
    """Write the tables of all pages anew."""
    for page in PAGES:
        old = page.read_text(encoding="utf-8")
        new = renewed(old)
        page.write_text(new, encoding="utf-8")
        sys.stdout.write(f"{page.relative_to(ROOT)}: {'renewed' if new != old else 'as it was'}\n")


def renewed(page: str) -> str:
    """Return a page with its tables written anew.

    >>> renewed("no table")
    'no table'
    """
    return _PLACE.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n\n{found[3]}", page)


def _tree(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def _rows(name: str, *groups: str) -> list[Row]:
    """Return the rows of a file, of some groups or of all, that have a time."""
    rows: list[Row] = _tree(name)["rows"]
    kept = [row for row in rows if row["seconds"] and row["group"] in (groups or (row["group"],))]
    return sorted(kept, key=_order)


def _order(row: Row) -> tuple[object, ...]:
    """Return what rows are sorted by: marks first, squares before others, then n x k and m."""
    m, n, k = row["m"], row["n"], row["k"]
    group = "" if row["group"] == "main" else row["group"]
    square = m == n == k
    return group, not square, (0, 0) if square else (n, k), m


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; columns whose name begins with ``#`` are flush right."""
    names = [column.removeprefix("#") for column in columns]
    rule = ["---:" if column.startswith("#") else "---" for column in columns]
    every = (names, rule, *([str(cell) for cell in row] for row in rows))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in every)


def _ratio(theirs: float | None, ours: float | None) -> str:
    return f"{theirs / ours:.3f}" if theirs and ours else ""


def _best(row: Row) -> float:
    """Return the time of the fastest of all peers."""
    return float(min(t for t in (row["peer_seconds"], row.get("triton_seconds")) if t))


def _shape(row: Row) -> str:
    return f"{row['m']} x {row['n']} x {row['k']}"


def _rate(row: Row) -> str:
    rate = 2 * row["m"] * row["n"] * row["k"] / row["seconds"] / 1e12
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"


def _measured_by(name: str) -> str:
    """Return where and when a file's rows were measured, and by which command."""
    tree = _tree(name)
    runs = [run for run in tree.get("runs", [tree["provenance"]]) if run["device"] != "none"]
    devices = sorted({f"{run['device']}, driver {run['driver']}" for run in runs})
    days = sorted({run["date"][:10] for run in runs})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"File `benchmarks/results/h200/{name}.json`; {'; '.join(devices)}; {when}."


def _drawn_trees() -> list[dict[str, Any]]:
    """Return what was found at drawn shapes, a file for each run on a card."""
    names = "h100/drawn_matmul.json", "h100/drawn_matmul_main.json", "h200/drawn_matmul.json"
    return [json.loads((FOLDER.parent / name).read_text(encoding="utf-8")) for name in names]


_PARTS: Mapping[str, Callable[[Row], bool]] = {
    "bf16, n a multiple of 8": lambda r: r["group"] == "drawn" and r["n"] % 8 == 0,
    "bf16, other n": lambda r: r["group"] == "drawn" and r["n"] % 8 != 0,
    "fp32": lambda r: r["group"] == "drawn fp32",
    "bf16, of the main shapes": lambda r: r["group"] == "main",
    "bf16, deep k": lambda r: r["group"] == "deep k",
}
"""What the drawn shapes are told apart by; the first three were drawn."""
_DRAWN = "drawn", "drawn fp32"


def _claim() -> str:
    """Return README's first claim: what the user's command finds at shapes nobody tuned for."""
    told, most, counts = [], 0.0, []
    cards: dict[str, list[Row]] = {}
    for tree in _drawn_trees():
        ran = [row for row in tree["rows"] if row["seconds"] and row["group"] in _DRAWN]
        cards.setdefault(_card(tree), []).extend(ran)
    for card, rows in cards.items():
        wide, others, single = ([*filter(of, rows)] for of in [*_PARTS.values()][:3])
        most = max(most, *(row["wall_seconds"] for row in rows))
        counts.append((len(wide) + len(others), len(single)))
        told.append(f"on an {card} {_told(wide)}, {_told(others)} and {_told(single)}")
    bf16, fp32 = ("/".join(map(str, dict.fromkeys(each))) for each in zip(*counts, strict=True))
    return (
        f"At {bf16} bf16 and {fp32} fp32 shapes drawn after the code was frozen, one command of at "
        f"most {most:.0f} seconds finds of the best of PyTorch, cuBLASLt and Triton "
        f"(bf16 in rows of 16 B, in others, fp32): {'; '.join(told)}."
    )


def _card(tree: Mapping[str, Any]) -> str:
    return str(tree["provenance"]["device"].split()[1])


def _told(rows: Sequence[Row]) -> str:
    """Return the mean, the least and the most of the ratios to the best peer."""
    ratios = [row["peer_seconds"] / row["seconds"] for row in rows]
    mean = statistics.geometric_mean(ratios)
    return f"{mean:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _hopper() -> str:
    """Return the shapes of the marks, each with its prediction and its peers."""
    columns = ("m x n x k", "#TFLOP/s", "#predicted / measured time", "#place", "#evaluations",
               "#of the library", "#of Triton", "#of the best", "#in order",
               "#first choice")  # fmt: skip
    rows = [
        (
            _shape(row),
            _rate(row),
            _ratio(row["predicted_seconds"], row["seconds"]),
            row.get("place") or "",
            row.get("evaluations") or "",
            _ratio(row["peer_seconds"], row["seconds"]),
            _ratio(row.get("triton_seconds"), row["seconds"]),
            _ratio(_best(row), row["seconds"]),
            _ratio(_best(row), row.get("seconds_in_order")),
            _ratio(_best(row), row.get("first_seconds")),
        )
        for row in _rows("hopper_matmul", "main")
    ]
    runs = _tree("hopper_matmul")["runs"]
    commands = {runs[row["run"]]["command"] for row in _rows("hopper_matmul", "main")}
    budgets = sorted({n for text in commands for n in re.findall(r"--seconds (\d+)", text)})
    told = f"Budget: {' and '.join(budgets)} s a shape. {_measured_by('hopper_matmul')}"
    return f"{_markdown(columns, rows)}\n\n{_means()}\n\n{told}"


def _means() -> str:
    """Return what the shapes of the marks come to: long and short kernels, the first choice."""
    rows = _rows("hopper_matmul", "main")
    first = [row for row in rows if row.get("first_seconds")]

    def told(some: Sequence[Mapping[str, Any]], field: str = "seconds") -> str:
        ratios = [_best(row) / row[field] for row in some]
        mean = statistics.geometric_mean(ratios)
        return f"{mean:.3f} of the best peer at {len(some)} shapes, {min(ratios):.3f} at the worst"

    return (
        f"Geometric means: kernels under 60 us {told([r for r in rows if r['seconds'] < 60e-6])}; "
        f"longer ones {told([r for r in rows if r['seconds'] >= 60e-6])}. The model's first "
        f"choice, for which nothing is measured: {told(first, 'first_seconds')}."
    )


def _summary() -> str:
    """Return what the groups of the Hopper benchmark come to."""
    columns = ("group", "#shapes", "#geometric mean", "#worst", "worst shape", "#best")
    rows = []
    for group in dict.fromkeys(row["group"] for row in _rows("hopper_matmul")):
        ratios = [(_best(r) / r["seconds"], _shape(r)) for r in _rows("hopper_matmul", group)]
        (worst, shape), (best, _) = min(ratios), max(ratios)
        mean = statistics.geometric_mean(ratio for ratio, _ in ratios)
        rows.append((group, len(ratios), f"{mean:.3f}", f"{worst:.3f}", shape, f"{best:.3f}"))
    return _markdown(columns, rows)


def _beside(name: str) -> str:
    """Return the rows of a matmul benchmark that are not of the marks or the ladder."""
    columns = ("group", "case", "m x n x k", "#time", "#of the library", "#of Triton")
    rows = [
        (
            row["group"],
            row["case"],
            _shape(row),
            time_text(row["seconds"]),
            _ratio(row["peer_seconds"], row["seconds"]),
            _ratio(row.get("triton_seconds"), row["seconds"]),
        )
        for row in _rows(name)
        if row["group"] not in ("main", "ladder")
    ]
    return _markdown(columns, rows)


def _winners() -> str:
    """Return, for each decision, how many of the winners have which value."""
    rows = _rows("hopper_matmul", "main")
    names = dict.fromkeys(name for row in rows for name in row["schedule"])
    told = []
    for name in names:
        counts = Counter(row["schedule"].get(name) for row in rows)
        counts.pop(None, None)
        told.append((f"`{name}`", ", ".join(f"{v} on {n}" for v, n in counts.most_common())))
    return _markdown(("decision", "values of the fastest schedules"), told)


def _ampere() -> str:
    """Return the cubes of the mma.sync benchmark."""
    columns = ("cube of", "#TFLOP/s", "#predicted / measured time", "#of the library", "#of Triton")
    rows = [
        (
            row["m"],
            _rate(row),
            _ratio(row["predicted_seconds"], row["seconds"]),
            _ratio(row["peer_seconds"], row["seconds"]),
            _ratio(row.get("triton_seconds"), row["seconds"]),
        )
        for row in _rows("ampere_matmul", "main")
    ]
    return f"{_markdown(columns, rows)}\n\n{_measured_by('ampere_matmul')}"


def _simt(*, ladder: bool) -> str:
    """Return the ladder of fp32 matmuls, or what was found of each shape."""
    columns = ("case", "m x n x k", "#TFLOP/s", "#predicted / measured time", "#of the library")
    rows = [
        (
            row["case"],
            _shape(row),
            _rate(row),
            _ratio(row["predicted_seconds"], row["seconds"]),
            _ratio(row["peer_seconds"], row["seconds"]),
        )
        for row in _rows("simt_ladder")
        if (row["group"] == "ladder") == ladder
    ]
    return f"{_markdown(columns, rows)}\n\n{_measured_by('simt_ladder')}"


def _host() -> str:
    """Return what a call costs the host, beside the library's."""
    columns = ("kernel, arrays of", "#a call", "#prepared", "the library's", "#its call")
    groups = ("call", "prepared")
    calls, prepared = ({r["case"]: r for r in _rows("host_overhead", group)} for group in groups)
    rows = [
        (
            case,
            time_text(row["seconds"]),
            time_text(prepared[case]["seconds"]),
            row["peer"],
            time_text(row["peer_seconds"]) if row["peer_seconds"] else "",
        )
        for case, row in calls.items()
    ]
    floor = time_text(_rows("host_overhead", "driver")[0]["seconds"])
    told = f"One empty kernel by the driver: {floor}. {_measured_by('host_overhead')}"
    return f"{_markdown(columns, rows)}\n\n{told}"


_RULES = ("measured", "measured, worst", "intervals", "nearest", "model", "first call")
_UP_TO = (16, 64, 256, 1024, 8192)


def _dispatch(part: str) -> str:
    """Return what few kernels cost on a part's shapes, rule by rule."""
    rows = {(r["kernels"], r["rule"]): r for r in _rows_of("dispatch", part)}
    counts = sorted({kernels for kernels, rule in rows if rule == "measured"})
    told = [
        (
            str(count),
            *(f"{one['geomean_slowdown']:.3f} / {one['worst_slowdown']:.2f}" for one in mine),
            f"{mine[0]['geomean_vs_peer']:.3f}",
        )
        for count in counts
        for mine in [[rows[count, rule] for rule in _RULES]]
    ]
    (oracle,) = (row for (_, rule), row in rows.items() if rule == "oracle")
    noise = f"{oracle['geomean_slowdown']:.3f} / {oracle['worst_slowdown']:.2f}"
    ahead = f"{oracle['geomean_vs_peer']:.3f}"
    told.append((f"all {oracle['kernels']}", noise, *[""] * (len(_RULES) - 1), ahead))
    columns = ("kernels", *(f"#{rule}" for rule in _RULES), "#measured, of cuBLASLt")
    return f"{_markdown(columns, told)}\n\n{_dispatched_by(part)}"


def _by_layer() -> str:
    """Return where the candidates of the Llama part stand beside cuBLASLt, by layer and m."""
    measured = json.loads((FOLDER / "dispatch" / "llama.json").read_text(encoding="utf-8"))
    names = {(n, k): name for name, (_, n, k) in LAYERS.items()}
    ahead: dict[str, dict[int, list[float]]] = {name: {} for name in names.values()}
    for (m, n, k), seconds, peers in zip(
        measured["shapes"], measured["second"], measured["peers"], strict=True
    ):
        most = next(most for most in _UP_TO if m <= most)
        ratio = min(peers.values()) / min(s for s in seconds if s)
        ahead[names[n, k]].setdefault(most, []).append(ratio)
    columns = ("layer", *(f"#m to {most}" for most in _UP_TO), "#all")
    rows = []
    for name, of in ahead.items():
        groups = (*(of[most] for most in _UP_TO), [r for each in of.values() for r in each])
        rows.append((name, *(f"{statistics.geometric_mean(each):.3f}" for each in groups)))
    return _markdown(columns, rows)


def _block() -> str:
    """Return what the example's Llama block takes on bundles, beside PyTorch's."""
    path = FOLDER.parent / "h100" / "llama_block.json"
    tree = json.loads(path.read_text(encoding="utf-8"))
    rows = {(r["case"], r["tokens"], r["how"]): r for r in tree["rows"]}
    columns = ("tokens", "#torch, tokens/s", "#torch.compile, tokens/s", "#bundles, tokens/s",
               "#torch / bundles, graph", "#eager", "#compile / bundles, graph", "#compile, eager",
               )  # fmt: skip
    told = []
    for case, tokens in dict.fromkeys((case, tokens) for case, tokens, _ in rows):
        graph, eager = (rows[case, tokens, how] for how in ("graph", "eager"))
        names = ("torch", "compiled", "bundles")
        rates = (f"{tokens / graph[f'{name}_seconds']:,.0f}" for name in names)
        ratios = (f"{r[k]:.3f}" for k in ("speedup", "compiled_speedup") for r in (graph, eager))
        told.append((f"{case} {tokens}", *rates, *ratios))
    return f"{_markdown(columns, told)}\n\n{_card_of(path, tree)}"


def _hints(part: str) -> str:
    """Return the published experiment: kernels of hints at sizes, alone and together."""
    tree = _tree("dispatch")
    table = tree["tables"][part]
    columns = ("kernel of hint", *(f"#at {size}" for size in table["hints"]))
    rows = [
        (str(hint), *(time_text(s) if math.isfinite(s) else "illegal" for s in seconds))
        for hint, seconds in zip(table["hints"], table["single_seconds"], strict=True)
    ]
    rows.append(("the three, nearest", *map(time_text, table["multi_seconds"])))
    nearest, measured = _rows_of("dispatch", part)
    gain = (
        f"Over the {nearest['pairs']} pairs of hint and size at which the hint's kernel is legal: "
        f"{nearest['mean_gain']:+.1%} by the nearest hint "
        f"({nearest['geomean_slowdown']:.2f} of the fastest), "
        f"{measured['mean_gain']:+.1%} by three that were chosen by measurement "
        f"({measured['geomean_slowdown']:.2f})."
    )
    return f"{_markdown(columns, rows)}\n\n{gain} {_dispatched_by(part)}"


def _rows_of(name: str, experiment: str) -> list[Row]:
    return [row for row in _tree(name)["rows"] if row["experiment"] == experiment]


def _dispatched_by(part: str) -> str:
    run = _tree("dispatch")["runs"][_rows_of("dispatch", part)[0]["run"]]
    file = "File `benchmarks/results/h200/dispatch.json`"
    return f"{file}; {run['device']}, driver {run['driver']}; {run['date'][:10]}."


def _demo() -> str:
    """Return the fastest schedule of each layer of the demo."""
    rows: dict[str, Row] = {}
    for row in _rows("demo"):
        rows[row["case"]] = min(rows.get(row["case"], row), row, key=lambda one: one["seconds"])
    columns = ("layer", "m x n x k", "#predicted", "#measured", "#TFLOP/s", "#cuBLAS", "#ratio")
    told = [
        (
            name,
            _shape(row),
            time_text(row["predicted_seconds"]),
            time_text(row["seconds"]),
            _rate(row),
            time_text(row["peer_seconds"]),
            _ratio(row["peer_seconds"], row["seconds"]),
        )
        for name, row in rows.items()
    ]
    return _markdown(columns, told)


def _streaming() -> str:
    """Return the elementwise and RMSNorm kernels, each beside the best of PyTorch."""
    columns = ("operation", "type", "size", "#time", "#predicted / measured time", "#of PyTorch")
    told = []
    for name in ("elementwise", "rmsnorm"):
        best: dict[tuple[Any, ...], Row] = {}
        for row in _rows(name, "main"):
            key = (row["case"], row["dtype"], row["m"], row["n"])
            if row["peer_seconds"]:
                kept = best.get(key, row)
                best[key] = min(kept, row, key=lambda one: one["peer_seconds"])
        told += [
            (
                case,
                dtype,
                f"{m} x {n}" if n > 1 else m,
                time_text(row["seconds"]),
                _ratio(row["predicted_seconds"], row["seconds"]),
                _ratio(row["peer_seconds"], row["seconds"]),
            )
            for (case, dtype, m, n), row in best.items()
        ]
    sources = f"{_measured_by('elementwise')} {_measured_by('rmsnorm')}"
    return f"{_markdown(columns, told)}\n\n{sources}"


def _slow() -> str:
    """Return how well the slow kernel's variants are predicted."""
    rows = _rows("slow_kernel")
    ratios = sorted(row["predicted_seconds"] / row["seconds"] for row in rows)
    return (
        f"{len(rows)} variants of a slow fp32 kernel: predicted over measured time "
        f"{ratios[0]:.2f} to {ratios[-1]:.2f}, median {statistics.median(ratios):.2f}. "
        f"{_measured_by('slow_kernel')}"
    )


def _agreement() -> str:
    """Return how often two judges of a kernel were compared, and disagreed."""
    fuzz = {
        "fuzz": "random legal schedules",
        "fuzz_ptxas": "two problems of them, by ptxas 13.5.37",
        "simt_fuzz": "random legal schedules of `simt`",
    }
    rows: list[Sequence[object]] = []
    for name, what in fuzz.items():
        s = _tree(name)["summary"]
        rows.append((f"a GPU, float64 (`{name}.json`)", what, s["schedules"], s["wrong"]))
    judges = "PTX interpreter, GPU (`interpreter_agreement.json`)"
    for machine, s in _tree("interpreter_agreement")["summary"].items():
        rows.append((judges, f"random schedules of `{machine}`", s["cases"], s["disagree"]))
    for name in ("async_corpus", "tcgen05_corpus"):
        told = json.loads((FOLDER.parent / f"{name}.json").read_text(encoding="utf-8"))["summary"]
        told = told.get("rows", told)
        judges = f"judge, term interpreter (`{name}.json`)"
        rows.append((judges, "programs and mutants", told["programs"], told["missed"]))
    told = json.loads((FOLDER.parent / "families.json").read_text(encoding="utf-8"))["summary"]
    judges = "all laws, term interpreter (`families.json`)"
    rows.append((judges, "mutants by family of fault", told["mutants"], told["missed"]))
    return _markdown(("judges", "cases", "#how many", "#disagreements"), rows)


def _calibrated() -> str:
    """Return what calibration finds on an H200 beside the numbers of the package."""
    tree, known = _tree("calibrated"), load_device("h200").provenance
    told, details = [], []
    for row in tree["rows"]:
        if row["number"] not in known or "runs within" not in row["source"]:
            continue
        name, value, source = row["number"], row["value"], row["source"]
        committed = known[name]
        if row["kind"] == "spec":  # beside what was measured
            _, number, source = re.split(r"; measured (\S+) \(", source.removesuffix(")"))
            value = float(number)
        *said, spread = source.split("; ")[1:]
        far = (f"{value / committed.value:.3f}", spread.partition(" within ")[2])
        told.append((f"`{name}`", f"{committed.value:.4g}", committed.kind, f"{value:.4g}", *far))
        details += [f"- `{name}`: {'; '.join(said)}."] if said else []
    columns = ("number", "#of the package", "its kind", "#calibrated", "#ratio", "#runs within")
    record, seconds = tree["provenance"], tree["seconds"]
    by = f"`{record['command']}`; {record['device']}, driver {record['driver']}; {record['date']}"
    table = _markdown(columns, told)
    listed = "\n".join(details)
    return f"{table}\n\n{listed}\n\n{by}, commit {record['commit']}, {seconds:.0f} s in all."


def _held_out() -> str:
    """Return the errors of the time model of Hopper on held-out shapes, fitted on either card."""
    tree = json.loads((FOLDER.parent / "hopper_model.json").read_text(encoding="utf-8"))
    rows = [
        (
            row["fitted on"].upper(), row["card"].upper(), f"{row['median']:.1%}",
            f"{row['p90']:.0%}", f"{row['tau']:.2f}",
            *(f"{row[f'top {n}'] - 1:.2%}" for n in (1, 8)),
        )
        for row in tree["rows"]
        if row["shape"] == "all"
    ]  # fmt: skip
    columns = ("fitted on", "judged on", "#error, median", "#error, p90", "#Kendall's tau",
               "#regret at 1", "#at 8")  # fmt: skip
    return _markdown(columns, rows)


def _drawn() -> str:
    """Return what the user's command finds at shapes that were drawn after the code was frozen."""
    told, records = [], []
    for tree in _drawn_trees():
        for name, of in _PARTS.items():
            mine = [row for row in tree["rows"] if of(row)]
            if not mine:
                continue
            cells = [_card(tree), name, f"{len(mine)}"]
            for field in ("seconds", "first_seconds"):
                ratios = [row["peer_seconds"] / row[field] for row in mine if row[field]]
                failed = len(mine) - len(ratios)
                behind = f"{sum(ratio < 1 for ratio in ratios) + failed}"
                behind += f", {failed} failed" if failed else ""
                cells += [
                    f"{statistics.geometric_mean(ratios):.3f}", f"{min(ratios):.3f}", behind
                ]  # fmt: skip
            walls = [row["wall_seconds"] for row in mine]
            told.append((*cells, f"{statistics.median(walls):.1f} s", f"{max(walls):.1f} s"))
        record = tree["provenance"]
        by = f"{record['device']}, driver {record['driver']}; {record['date'][:10]}"
        records.append(f"`{record['command']}`; {by}, commit {record['commit'][:12]}.")
    columns = ("card", "shapes", "#count", "#best found", "#least", "#behind", "#model's first",
               "#least", "#behind", "#wall, median", "#most")  # fmt: skip
    return "\n\n".join((_markdown(columns, told), *records))


def _assemblers() -> str:
    """Return the same schedules by two assemblers."""
    tree = json.loads((FOLDER.parent / "h100" / "assemblers.json").read_text(encoding="utf-8"))
    old, new = tree["versions"]
    told = []
    for dtype in ("bf16", "f32"):
        ratios = [
            row[old]["seconds"] / row[new]["seconds"]
            for row in tree["rows"]
            if dtype in row["operation"]
        ]
        cells = (statistics.geometric_mean(ratios), min(ratios), max(ratios))
        told.append((dtype, f"{len(ratios)}", *(f"{cell:.3f}" for cell in cells)))
    columns = ("type", "#schedules", f"#time by {old} / by {new}", "#least", "#most")
    record = tree["provenance"]
    by = f"{record['device']}, driver {record['driver']}; {record['date'][:10]}"
    return f"{_markdown(columns, told)}\n\n`{record['command']}`; {by}."


def _clocks() -> str:
    """Return the shapes of the clocks: what was found and the best peer, together and alone."""
    name = FOLDER.parent / "h100" / "drawn_matmul_clocks.json"
    tree = json.loads(name.read_text(encoding="utf-8"))
    told = []
    for row in sorted(tree["rows"], key=lambda row: -row["m"] * row["n"] * row["k"]):
        seconds, mhz = row["alone_seconds"], row["alone_mhz"]
        tile = (row["schedule"][f"{of}_{axis}"] for of in ("tile", "cluster") for axis in "mnk")
        cells = (
            "{} x {} x {}, {} x {} x {}".format(*tile),
            *(f"{mhz[0]}", f"{mhz[1]}", f"{seconds[0] * mhz[0] / (seconds[1] * mhz[1]):.3f}"),
            *(_ratio(seconds[1], seconds[0]), _ratio(row["peer_seconds"], row["seconds"])),
        )
        told.append((_shape(row), *cells))
    columns = ("m x n x k", "tile, cluster", "#MHz", "#of the peer", "#cycles / the peer's",
               "#alone", "#together")  # fmt: skip
    record = tree["provenance"]
    by = f"{record['device']}, driver {record['driver']}; {record['date'][:10]}"
    by = f"{by}, commit {record['commit'][:12]}"
    return f"{_markdown(columns, told)}\n\n`{record['command']}`; {by}."


def _fleet() -> str:
    """Return what further GPUs are worth."""
    tree = json.loads((FOLDER.parent / "h100" / "fleet.json").read_text(encoding="utf-8"))
    told = [
        (
            row["kernels"],
            f"{row['schedules']}",
            f"{row['one_seconds']:.1f} s",
            f"{row['all_seconds']:.1f} s",
            f"{row['efficiency']:.2f}",
        )
        for row in tree["rows"]
    ]
    columns = ("kernels", "#schedules", "#one GPU", f"#{tree['rows'][0]['gpus']} GPUs", "#of ideal")
    record = tree["provenance"]
    by = f"`{record['command']}`; {record['device']}, driver {record['driver']}; {record['date']}"
    return f"{_markdown(columns, told)}\n\n{by}, commit {record['commit']}, {tree['cores']} cores."


def _rankings() -> str:
    """Return the regret of each ranking of the schedules of the held-out cases."""
    found = _tree("time_model")["rankings"]
    counts = list(next(iter(found["hopper"].values())))
    rows = [
        (machine, name, *(f"{100 * at[count]:.1f} %" for count in counts))
        for machine, by in found.items()
        for name, at in by.items()
    ]
    return _markdown(("held out", "ranking", *(f"#at {count}" for count in counts)), rows)


def _oracle() -> str:
    """Return how far the time model is right on schedules that it is not fitted to."""
    tree = _tree("time_model")
    known = {f"{name}, assembled": of for name, of in tree["assembled"]["held_out"].items()}
    rows = [
        (
            name,
            row["shapes"],
            f"{row['regret_at_1']:.1%}",
            f"{row['regret_at_1_p95']:.1%}",
            f"{row['regret_at_8']:.1%}",
            *(f"{row[f'random_at_{n}']:.1%}" for n in (1, 8)),
            f"{row['aa_noise']:.1%}",
            f"{row['kendall_tau']:.2f}",
            *(f"{row[f'{name}_tau_near']:.2f}" for name in ("kendall", "aa")),
            f"{row['median_abs_error']:.0%}",
        )
        for name, row in {**tree["summaries"], **known}.items()
    ]
    columns = ("machine", "#shapes", "#regret at 1", "#p95", "#at 8", "#random at 1", "#at 8",
               "#A/A", "#tau", "#tau near", "#A/A", "#error, median")  # fmt: skip
    return _markdown(columns, rows)


def _aims() -> str:
    """Return what was aimed at, beside what it is."""
    tree, main = _tree("time_model"), _rows("hopper_matmul", "main")
    found = tree["summaries"] | {"simt, assembled": tree["assembled"]["held_out"]["simt"]}
    hopper, few = found["hopper"], found["hopper, m <= 64"]
    best = [_best(row) / row["seconds"] for row in main]
    long = [_best(row) / row["seconds"] for row in main if row["seconds"] > 60e-6]
    first = [_best(row) / row["first_seconds"] for row in main]
    mean = statistics.geometric_mean
    percent, plain = "{:.1%}".format, "{:.4f}".format
    aims = [
        ("`hopper`, held out: regret at 1", "at most", 0.03, hopper["regret_at_1"], percent),
        ("its 95th percentile", "at most", 0.10, hopper["regret_at_1_p95"], percent),
        ("at few rows (m <= 64)", "at most", 0.02, few["regret_at_1"], percent),
        ("at 8", "at most", 0.01, hopper["regret_at_8"], percent),
        ("Kendall's tau", "at least", 0.80, hopper["kendall_tau"], plain),
        ("tau near", "at least", 0.60, hopper["kendall_tau_near"], plain),
        ("error, median", "at most", 0.06, hopper["median_abs_error"], percent),
        ("times within the intervals", "at least", 0.88, hopper["covered"], percent),
        ("half-width of the intervals", "at most", 0.15, hopper["half_width"], percent),
        *(
            (f"`{machine}`, held out: regret at {n}", "at most", aim,
             found[machine][f"regret_at_{n}"], percent)
            for machine in ("simt", "simt, assembled", "ampere")
            for n, aim in ((1, 0.06), (8, 0.02))
        ),
        ("first choice over the best peer", "at least", 1.02, mean(first), plain),
        ("the worst shape of these", "at least", 0.95, min(first), plain),
        ("what a search finds over the best peer", "at least", 1.06, mean(best), plain),
        ("kernels above 60 us", "at least", 1.01, mean(long), plain),
    ]  # fmt: skip
    rows = []
    for name, bound, aim, value, told in aims:
        missed = value > aim if bound == "at most" else value < aim
        rows.append((name, f"{bound} {told(aim)}", told(value), "missed" if missed else ""))
    return _markdown(("what", "#aimed at", "#is", ""), rows)


def _replay() -> str:
    """Return how soon strategies find the best of complete landscapes."""
    tree = json.loads((FOLDER.parent / "replay.json").read_text(encoding="utf-8"))
    rows = [
        (
            row["strategy"],
            row["start"],
            *("more" if row[n] is None else f"{row[n]:.0f}" for n in ("evaluations", "worst")),
            f"{row['area']:.3f}",
            *(f"{ratio:.3f}" for ratio in row["best_at"].values()),
            f"{row['least_at_16']:.3f}",
            f"{1e3 * row['seconds']:.0f} ms",
        )
        for row in tree["rows"]
    ]
    columns = ("strategy", "start", "#to 99 %", "#worst shape", "#area", *(
        f"#after {n}" for n in ("1", "4", "16", "64")), "#least after 16", "#a walk")  # fmt: skip
    return _markdown(columns, rows)


def _replay_held_out() -> str:
    """Return how soon the search's strategy finds the best where nothing was chosen."""
    tree = json.loads((FOLDER.parent / "replay_held_out.json").read_text(encoding="utf-8"))
    rows = [
        (
            row["source"],
            row["strategy"],
            f"{row['shapes']}",
            f"{row['schedules']}",
            *("more" if row[n] is None else f"{row[n]:.0f}" for n in ("evaluations", "worst")),
            *(f"{ratio:.4f}" for ratio in row["best_at"].values()),
            *(f"{ratio:.3f}" for ratio in row["least_at"].values()),
        )
        for row in tree["rows"]
    ]
    after = [f"#{what} after {n}" for what in ("best", "least") for n in (8, 16, 32)]
    columns = ("source", "strategy", "#shapes", "#schedules", "#to 99 %", "#worst", *after)
    return _markdown(columns, rows)


def _policy() -> str:
    """Return how a learned policy walks on landscapes, beside random."""
    tree = json.loads((FOLDER.parent / "policy.json").read_text(encoding="utf-8"))
    kinds = ("policy", "changes", "random")
    rows = [
        ("x".join(map(str, r["shape"])), r["group"].replace("_", " "),
         *(f"{r[name]:.3f}" for name in kinds), f"{r['wins']} of {tree['seeds']}")
        for r in sorted(tree["rows"], key=lambda r: r["group"])
    ]  # fmt: skip
    for group in ("fitting", "held_out"):
        mine = [r for r in tree["rows"] if r["group"] == group]
        means = (statistics.geometric_mean(r[name] for r in mine) for name in kinds)
        wins = f"{sum(r['wins'] for r in mine)} of {tree['seeds'] * len(mine)}"
        rows.append(("all", group.replace("_", " "), *(f"{mean:.3f}" for mean in means), wins))
    columns = ("m x n x k", "group", *(f"#{name}" for name in kinds), "#policy is faster")
    return _markdown(columns, rows)


def _attention_replay(*, each: bool) -> str:
    """Return how soon walks find the best of attention's landscapes: by strategy, or each."""
    path = FOLDER.parent / "h100" / "attention_replay.json"
    tree = json.loads(path.read_text(encoding="utf-8"))
    every = tree["rows"]
    if each:
        columns = ("heads", "#keys", "#d", "mask", "#schedules", "#best", "#A/A", *(
            f"#{row['strategy']}" for row in every))  # fmt: skip
        rows = [
            (one["heads"], one["n"], one["d"], one["mask"], one["schedules"],
             time_text(one["seconds"]), f"{one['noise']:.1%}".replace("%", " %"),
             *(f"{row['evaluations'][i]:.3g}" for row in every))
            for i, one in enumerate(tree["problems"])
        ]  # fmt: skip
        card = _card({"provenance": tree["landscapes"]})
        return f"{_markdown(columns, rows)}\n\nTimes of the {card}."
    columns = ("order", "#walks", "#to 99 %", "#worst problem", "#to 95 %", "#worst at 95 %", *(
        f"#after {n}" for n in every[0]["best_at"]))  # fmt: skip
    problems = len(tree["problems"])
    rows = [
        (row["strategy"], row["seeds"] * problems, f"{row['mean']:.1f}", f"{row['worst']:.0f}",
         f"{row['mean_wide']:.1f}", f"{row['worst_wide']:.0f}",
         *(f"{ratio:.3f}" for ratio in row["best_at"].values()))
        for row in every
    ]  # fmt: skip
    return _markdown(columns, rows)


def _judged() -> str:
    """Return what the judge says of random schedules, and how long it takes."""
    tree = json.loads((FOLDER.parent / "judged.json").read_text(encoding="utf-8"))
    columns = ("machine", "#schedules", "#proved", "#skeletons", "#mean", "#slowest")
    rows = []
    for name in dict.fromkeys(row["machine"] for row in tree["rows"]):
        mine = [row for row in tree["rows"] if row["machine"] == name]
        counts = [sum(row[c] for row in mine) for c in ("schedules", "proved", "skeletons")]
        took = sum(row["milliseconds"] * row["schedules"] for row in mine) / counts[0]
        rows.append((name, *counts, f"{took:.1f} ms", f"{max(r['slowest'] for r in mine):.0f} ms"))
    return f"{_markdown(columns, rows)}\n\nMade on {tree['provenance']['date'][:10]}, on a CPU."


def _attention(table: str = "attention") -> str:
    """Return the cases of attention, each with its fastest point and its peers."""
    path = FOLDER.parent / "h100" / f"{table}.json"
    tree = json.loads(path.read_text(encoding="utf-8"))
    once = ("decode", "paged", "fp8")  # of which another table tells
    kept = [r for r in tree["rows"] if r["seconds"] and not r["group"].startswith(once)]
    columns = ("mask", "#b", "#heads", "#queries", "#keys", "#d", "fastest point", "#TFLOP/s",
               "#predicted / measured time", "#of cuDNN", "#of FA3", "#of Triton",
               "#of the best")  # fmt: skip
    rows = [
        (
            "causal" if row["causal"] else "none",
            row["b"], row["h"] * row["g"], row["m"], row["n"], row["d"],
            row["schedule"]["point"],
            f"{row['tflops']:.0f}",
            _ratio(row["predicted_seconds"], row["seconds"]),
            *(_ratio(row[f"{peer}_seconds"], row["seconds"]) for peer in ("peer", "fa3", "triton")),
            f"{row['ratio']:.3f}",
        )
        for row in sorted(kept, key=lambda row: (row["causal"], row["d"], row["m"]))
    ]  # fmt: skip
    return f"{_markdown(columns, rows)}\n\n{_run_of_attention(table, tree, kept)}"


def _searched(group: str) -> tuple[Any, list[Any]]:
    """Return what searches for attention found, and the rows of the groups of this name."""
    path = FOLDER.parent / "h100" / "attention_searched.json"
    tree = json.loads(path.read_text(encoding="utf-8"))
    return tree, [r for r in tree["rows"] if r["seconds"] and r["group"].startswith(group)]


def _decode() -> str:
    """Return what a search finds for one query, and its peers; keys and values are read once."""
    tree, kept = _searched("decode")
    columns = ("#sequences", "heads", "#keys", "#time", "#TB/s", "#predicted / measured time",
               "#of cuDNN", "#of FA3", "#of FA2", "#of Triton", "#of the best",
               "#found / model's first")  # fmt: skip
    rows = [
        (
            row["b"], f"{row['h'] * row['g']} on {row['h']}", row["n"],
            f"{row['seconds'] * 1e6:.1f} us",
            f"{4 * row['b'] * row['h'] * row['d'] * row['n'] / row['seconds'] * 1e-12:.2f}",
            _ratio(row["predicted_seconds"], row["seconds"]),
            *(_ratio(row[f"{peer}_seconds"], row["seconds"])
              for peer in ("peer", "fa3", "fa2", "triton")),
            f"{row['ratio']:.3f}",
            _ratio(row["seconds"], row["points"].get("model's first", row["seconds"])),
        )
        for row in sorted(kept, key=lambda row: (row["b"], row["n"]))
    ]  # fmt: skip
    mean = statistics.geometric_mean(row["ratio"] for row in kept)
    told = _run_of_attention("attention_searched", tree, kept)
    return f"{_markdown(columns, rows)}\n\nGeometric mean of the best: {mean:.3f}. {told}"


def _paged() -> str:
    """Return what a search finds for one query and keys in pages, beside dense keys."""
    tree, kept = _searched("paged")
    dense = {(r["b"], r["n"]): r["seconds"] for r in tree["rows"] if r["group"] == "decode"}
    columns = (
        *("#keys of a page", "#sequences", "heads", "#keys", "#time", "#TB/s"),
        *("#predicted / measured time", "#dense / paged", "#found / model's first"),
    )
    rows = [
        (
            row["group"].split()[1], row["b"], f"{row['h'] * row['g']} on {row['h']}", row["n"],
            f"{row['seconds'] * 1e6:.1f} us",
            f"{4 * row['b'] * row['h'] * row['d'] * row['n'] / row['seconds'] * 1e-12:.2f}",
            _ratio(row["predicted_seconds"], row["seconds"]),
            _ratio(dense[row["b"], row["n"]], row["seconds"]),
            _ratio(row["seconds"], row["points"].get("model's first", row["seconds"])),
        )
        for row in sorted(kept, key=lambda row: (int(row["group"].split()[1]), row["b"], row["n"]))
    ]  # fmt: skip
    return f"{_markdown(columns, rows)}\n\n{_run_of_attention('attention_searched', tree, kept)}"


def _attention_of_8_bits() -> str:
    """Return what a search finds for e4m3, beside FlashAttention-3."""
    tree, kept = _searched("fp8")
    columns = ("mask", "#b", "#heads", "#queries", "#d", "#TFLOP/s", "#FA3's",
               "#predicted / measured time", "#of FA3", "#model's first, of FA3", "#error",
               "#FA3's error")  # fmt: skip
    rows = [
        (
            "causal" if row["causal"] else "none", row["b"], row["h"] * row["g"], row["m"],
            row["d"], f"{row['tflops']:.0f}", f"{row['flops'] / row['fa3_seconds'] * 1e-12:.0f}",
            _ratio(row["predicted_seconds"], row["seconds"]),
            _ratio(row["fa3_seconds"], row["seconds"]),
            _ratio(row["fa3_seconds"], row["points"].get("model's first", row["seconds"])),
            f"{row['error']:.2f}", f"{row['fa3_error']:.2f}",
        )
        for row in sorted(kept, key=lambda row: (row["causal"], row["m"]))
    ]  # fmt: skip
    return f"{_markdown(columns, rows)}\n\n{_run_of_attention('attention_searched', tree, kept)}"


_ACROSS = 4
"""Columns of orders beside one another."""


def _cycles(*, orders: bool) -> str:
    """Return what Nsight Compute counts of attention's schedules, or of the orders of one."""
    path = FOLDER.parent / "h100" / "attention_cycles.json"
    tree = json.loads(path.read_text(encoding="utf-8"))
    every = [row for row in tree["rows"] if row["name"].startswith("order ") == orders]
    if orders:
        best = min(row["cycles"] for row in every)
        told = [
            f"| `{row['name'].removeprefix('order ')}` | {row['cycles'] / best:.3f} "
            for row in sorted(every, key=lambda row: row["cycles"])
        ]
        down = -(-len(told) // _ACROSS)
        told += ["| | "] * (down * _ACROSS - len(told))
        lines = ["".join(told[i::down]) + "|" for i in range(down)]
        head = ["| order | cycles " * _ACROSS + "|", "| --- | ---: " * _ACROSS + "|"]
        return "\n".join([*head, *lines])
    cases = list(dict.fromkeys(row["case"] for row in every))
    cycles = {(row["name"], row["case"]): row["cycles"] for row in every}
    named = [CASES[case] for case in cases]
    columns = ("M cycles", *(
        f"#{one.m}, d {one.d}, {'causal' if one.causal else 'no mask'}" for one in named
    ))  # fmt: skip
    rows = [
        (name, *(f"{c / 1e6:.3f}" if (c := cycles.get((name, case))) else "" for case in cases))
        for name in dict.fromkeys(row["name"] for row in every)
    ]
    return f"{_markdown(columns, rows)}\n\n{_card_of(path, tree)}"


def _card_of(path: Path, tree: Mapping[str, Any]) -> str:
    """Return the file of a run on an H100, its card, day and commit."""
    run = tree["provenance"]
    card = (
        f"{run['device']}, driver {run['driver']}; {run['date'][:10]}; commit {run['commit'][:7]}"
    )
    return f"File `benchmarks/results/h100/{path.name}`; {card}."


def _rewrites() -> str:
    """Return what rewritten texts of one schedule of attention take, causal and without a mask."""
    path = FOLDER.parent / "h100" / "attention_rewrites.json"
    tree = json.loads(path.read_text(encoding="utf-8"))
    cases = list(dict.fromkeys(row["case"] for row in tree["rows"]))
    found = {(row["name"], row["case"]): row for row in tree["rows"]}
    columns = ["rewritten"]
    for case in cases:
        mask = "causal" if case.endswith("causal") else "no mask"
        columns += [f"#{mask}, M cycles", "#of as it is", "#instructions", "#tensor cores"]
    told = []
    for name in dict.fromkeys(row["name"] for row in tree["rows"]):
        cells = [name]
        for case in cases:
            row, base = found[name, case], found["as it is", case]
            cells += [
                f"{row['cycles'] / 1e6:.3f}", f"{row['cycles'] / base['cycles']:.3f}",
                f"{row['instructions'] / base['instructions']:.3f}",
                f"{row['tensor_percent']:.1f} %",
            ]  # fmt: skip
        told.append(cells)
    return f"{_markdown(columns, told)}\n\n{_card_of(path, tree)}"


def _grouped(gated: bool = False) -> str:
    """Return what a search finds for grouped matmuls, beside their peers; those with a gate."""
    path = FOLDER.parent / "h100" / "grouped.json"
    tree = json.loads(path.read_text(encoding="utf-8"))
    kept = [row for row in tree["rows"] if row["seconds"]]
    kept = [row for row in kept if row["group"].endswith("gated") == gated]
    columns = ("#groups", "#rows", "#n", "#k", "rows of groups", "#time", "#TFLOP/s",
               "#predicted / measured time", "#of torch", "#of cuBLAS, a loop", "#of Triton",
               "#of the best", "#found / model's first")  # fmt: skip

    def of(row: Mapping[str, Any], peer: str) -> str:
        times = [t for n, t in row["peers"].items() if n.startswith(peer) and isinstance(t, float)]
        return _ratio(min(times, default=None), row["seconds"])

    rows = [
        (
            row["g"], row["m"], row["n"], row["k"], row["routing"],
            f"{row['seconds'] * 1e6:.0f} us", f"{row['tflops']:.0f}",
            _ratio(row["predicted_seconds"], row["seconds"]),
            *(of(row, peer) for peer in ("torch", "cublas", "triton")),
            f"{row['ratio']:.3f}", _ratio(row["seconds"], row["first_seconds"]),
        )
        for row in sorted(kept, key=lambda row: (row["g"], row["m"], row["routing"]))
    ]  # fmt: skip
    mean = statistics.geometric_mean(row["ratio"] for row in kept)
    torch = statistics.geometric_mean(r["peers"]["torch_grouped"] / r["seconds"] for r in kept)
    told = _run_of_attention("grouped", tree, kept)
    means = f"Geometric mean of the best: {mean:.3f}; of `torch._grouped_mm`: {torch:.3f}."
    return f"{_markdown(columns, rows)}\n\n{means} {told}"


def _deep() -> str:
    """Return what a search over all machines finds where k is deep, on both cards."""
    told, notes = [], []
    for card in ("h100", "h200"):
        path = FOLDER.parent / card / "drawn_matmul_deep.json"
        tree = json.loads(path.read_text(encoding="utf-8"))
        for row in tree["rows"]:
            chosen, seconds = row["schedule"], row["seconds"]
            parts = f"plan, {chosen['split_k']}" if "split_k" in chosen else (
                f"cluster, {chosen['cluster_k']}")  # fmt: skip
            told.append((
                card.upper(), _shape(row), parts, f"{seconds * 1e6:.1f} us",
                _ratio(row["predicted_seconds"], seconds), _ratio(row["cublaslt_seconds"], seconds),
                _ratio(row["torch_seconds"], seconds), _ratio(row["peer_seconds"], seconds),
                _ratio(seconds, row["first_seconds"]),
            ))  # fmt: skip
        (line,), record = tree["summary"], tree["provenance"]
        notes.append(
            f"{card.upper()}: geometric mean of the best {line['best']:.3f}, least "
            f"{line['best_least']:.3f}; the model's first {line['first']:.3f}. "
            f"`{record['command']}`; {record['device']}, driver {record['driver']}; "
            f"{record['date'][:10]}, commit {record['commit'][:12]}."
        )
    columns = ("card", "m x n x k", "parts of k", "#time", "#predicted / measured time",
               "#of cuBLASLt", "#of torch", "#of the best", "#found / model's first")  # fmt: skip
    return "\n\n".join([_markdown(columns, told), *notes])


def _rmsnorm_matmul() -> str:
    """Return what a search finds for a norm and a matmul, beside PyTorch."""
    path = FOLDER.parent / "h100" / "rmsnorm_matmul.json"
    tree = json.loads(path.read_text(encoding="utf-8"))
    kept = [row for row in tree["rows"] if row["seconds"]]
    columns = ("m x n x k", "#time", "#TFLOP/s", "#predicted / measured time", "#of eager",
               "#of compiled", "#found / model's first")  # fmt: skip
    rows = [
        (
            _shape(row), f"{row['seconds'] * 1e6:.1f} us", f"{row['tflops']:.0f}",
            _ratio(row["predicted_seconds"], row["seconds"]),
            *(_ratio(row["peers"][f"torch_{peer}"], row["seconds"])
              for peer in ("eager", "compiled")),
            _ratio(row["seconds"], row["first_seconds"]),
        )
        for row in sorted(kept, key=lambda row: (row["k"], row["n"], row["m"]))
    ]  # fmt: skip
    mean = statistics.geometric_mean(row["ratio"] for row in kept)
    told = _run_of_attention("rmsnorm_matmul", tree, kept)
    return f"{_markdown(columns, rows)}\n\nGeometric mean of the better: {mean:.3f}. {told}"


def _run_of_attention(table: str, tree: Mapping[str, Any], rows: Sequence[Any]) -> str:
    """Return from which runs rows are."""
    runs = [tree["runs"][number] for number in sorted({row["run"] for row in rows})]
    cards = ", ".join(dict.fromkeys(f"{r['device']}, driver {r['driver']}" for r in runs))
    days = ", ".join(dict.fromkeys(r["date"][:10] for r in runs))
    commits = ", ".join(dict.fromkeys(r["commit"][:7] for r in runs))
    capped = sum(row["capped"] for row in rows)
    return (
        f"File `benchmarks/results/h100/{table}.json`; {cards}; {days}; commits {commits}; "
        f"at the power cap in {capped} of {len(rows)}."
    )


TABLES: Mapping[str, Callable[[], str]] = {
    "attention": _attention,
    "attention searched": lambda: _attention("attention_searched"),
    "attention cycles": lambda: _cycles(orders=False),
    "attention cycles of orders": lambda: _cycles(orders=True),
    "attention rewrites": _rewrites,
    "attention decode": _decode,
    "attention paged": _paged,
    "attention fp8": _attention_of_8_bits,
    "attention replay": partial(_attention_replay, each=False),
    "attention replay problems": partial(_attention_replay, each=True),
    "grouped": _grouped,
    "grouped gated": partial(_grouped, gated=True),
    "rmsnorm matmul": _rmsnorm_matmul,
    "deep": _deep,
    "agreement": _agreement,
    "ampere": _ampere,
    "ampere beside": lambda: _beside("ampere_matmul"),
    "aims": _aims,
    "calibrated": _calibrated,
    "claim": _claim,
    "assemblers": _assemblers,
    "demo": _demo,
    "dispatch": partial(_dispatch, "4096"),
    "dispatch hints bf16": partial(_hints, "hints bf16"),
    "dispatch hints fp32": partial(_hints, "hints fp32"),
    "dispatch layers": _by_layer,
    "dispatch llama": partial(_dispatch, "llama"),
    "held out": _held_out,
    "hopper": _hopper,
    "hopper beside": lambda: _beside("hopper_matmul"),
    "hopper summary": _summary,
    "clocks": _clocks,
    "drawn": _drawn,
    "fleet": _fleet,
    "host": _host,
    "judged": _judged,
    "llama block": _block,
    "oracle": _oracle,
    "policy": _policy,
    "rankings": _rankings,
    "replay": _replay,
    "replay held out": _replay_held_out,
    "simt": lambda: _simt(ladder=False),
    "simt ladder": lambda: _simt(ladder=True),
    "slow": _slow,
    "streaming": _streaming,
    "winners": _winners,
}
"""What writes each table or sentence, by its name."""


if __name__ == "__main__":
    main()
