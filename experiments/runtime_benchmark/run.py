"""Measure the claims about the runtime, and write their tables.

    python -m experiments.runtime_benchmark.run [CLAIM ...] [--torch-python PATH]
        [--mpich-python PATH] [--cases NAME] [--out FOLDER]
        [--tiny] [--resume] [--summarise] [--pictures]

By default, all claims are measured. `cases.toml` has all sizes. `--cases bytes` overrides some of
them by `bytes.toml` and writes to `results/bytes`. `--tiny` takes the sizes of `tiny.toml`: every
claim runs in seconds, and no number means anything. `--resume` measures only what the raw tables
lack. `--summarise` measures nothing and summarises the raw tables again. `--pictures` also draws.
"""

import argparse
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.emulated_links import CannotMeasureError
from experiments.runtime_benchmark.bench import (
    Bench,
    Claim,
    Measurement,
    RawTable,
    describe_machine,
)
from experiments.runtime_benchmark.benchmarks.all_reduce import ALL_REDUCE
from experiments.runtime_benchmark.benchmarks.crossover import CROSSOVER
from experiments.runtime_benchmark.benchmarks.efficiency import EFFICIENCY
from experiments.runtime_benchmark.benchmarks.gpu import GPU
from experiments.runtime_benchmark.benchmarks.host import HOST
from experiments.runtime_benchmark.benchmarks.library import LIBRARY
from experiments.runtime_benchmark.benchmarks.one_device import ONE_DEVICE
from experiments.runtime_benchmark.benchmarks.overlap import OVERLAP
from experiments.runtime_benchmark.benchmarks.stage import STAGE
from experiments.runtime_benchmark.benchmarks.start import START
from experiments.runtime_benchmark.benchmarks.torch import TORCH
from experiments.runtime_benchmark.benchmarks.transport import TRANSPORT
from experiments.table import Row, markdown, read_values, write_csv

_HERE = Path(__file__).parent
CLAIMS: Mapping[str, Claim] = {
    "stage": STAGE,
    "start": START,
    "host": HOST,
    "efficiency": EFFICIENCY,
    "torch": TORCH,
    "one_device": ONE_DEVICE,
    "transport": TRANSPORT,
    "all_reduce": ALL_REDUCE,
    "library": LIBRARY,
    "overlap": OVERLAP,
    "gpu": GPU,
    "crossover": CROSSOVER,
}


def main(arguments: list[str] | None = None) -> None:
    """Measure the claims that the command line names, or all of them."""
    given = _parser().parse_args(arguments)
    out = given.out or (Path("runs/tiny") if given.tiny else _results_of(given.cases))
    bench = Bench(
        cases=cases_of("tiny" if given.tiny else given.cases),
        torch_python=given.torch_python,
        mpich_python=given.mpich_python,
    )
    names = tuple(given.claims or CLAIMS)
    measured: set[str] = set()
    for name in names:
        print(f"\n{name}: {CLAIMS[name].aim}", flush=True)
        table = CLAIMS[name].table or name
        try:
            if not given.summarise and table not in measured:
                sharing = [each for each in names if (CLAIMS[each].table or each) == table]
                measure(table, sharing, bench, out, resumes=given.resume)
                measured.add(table)
            report(name, bench.cases, out, draws=given.pictures)
        except CannotMeasureError as reason:
            print(f"{name} is left out: {reason}", flush=True)
        except FileNotFoundError as error:
            print(f"{name} is left out: there is no {error.filename}", flush=True)


def cases_of(name: str) -> dict[str, Any]:
    """Return the sizes of a file next to this one; `cases.toml` has what it leaves out."""
    usual, own = (tomllib.loads((_HERE / f"{each}.toml").read_text()) for each in ("cases", name))
    return {key: {**section, **own.get(key, {})} for key, section in usual.items()}


def measure(table: str, names: Sequence[str], bench: Bench, out: Path, *, resumes: bool) -> None:
    """Measure the claims that share a raw table, and store the table and the machine.

    Raises:
        CannotMeasureError: this machine lacks what a claim needs.
    """
    before = describe_machine()
    measurements = _round_by_round(names, bench)
    path = _raw_file(table, out)
    known = read_values(path) if path.exists() else []
    if not resumes:
        # A shared table keeps the rows of claims that are not measured now.
        known = [row for row in known if table not in CLAIMS and not _has(measurements, row)]
    raw = RawTable(path, known=known)
    for measurement in measurements:
        raw.once(measurement)
    machine = {**before, "load_1_5_15_min_after": describe_machine()["load_1_5_15_min"]}
    _keep_machine(dict.fromkeys(names, machine), out)


def report(name: str, cases: Mapping[str, Any], out: Path, *, draws: bool) -> None:
    """Summarise the raw rows of a claim, and draw them on request."""
    claim = CLAIMS[name]
    rows = claim.select(cases, read_values(_raw_file(claim.table or name, out)))
    summary = claim.summarise(rows)
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(summary, folder / "summary.csv")
    if draws:
        claim.draw(rows, folder / "picture.png")
    print(markdown(summary), flush=True)


def _round_by_round(names: Sequence[str], bench: Bench) -> list[Measurement]:
    """Return the measurements of some claims by round; one that claims share comes once."""
    unique: dict[tuple[Any, ...], Measurement] = {}
    for name in names:
        for measurement in CLAIMS[name].measurements(bench):
            unique.setdefault(tuple(measurement.columns.items()), measurement)
    return sorted(unique.values(), key=lambda each: float(each.columns.get("round", 0)))


def _has(measurements: Sequence[Measurement], row: Row) -> bool:
    """Return whether a row belongs to one of the measurements, in any round."""
    return any(
        all(str(row[name]) == str(value) for name, value in each.columns.items() if name != "round")
        for each in measurements
    )


def _raw_file(table: str, out: Path) -> Path:
    return out / table / "raw.csv"


def _keep_machine(machines: Mapping[str, Any], out: Path) -> None:
    """Store the machine of each claim, next to those of claims that were measured before."""
    path = out / "machine.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, **machines}, indent=2) + "\n")


def _results_of(cases: str) -> Path:
    return _HERE / "results" / ("" if cases == "cases" else cases)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measure the claims about the runtime.")
    parser.add_argument("claims", nargs="*", choices=[[], *CLAIMS], metavar="CLAIM")
    parser.add_argument("--torch-python", type=Path, help="a Python with PyTorch")
    parser.add_argument("--mpich-python", type=Path, help="a Python with jaxpipe and MPICH")
    parser.add_argument("--cases", choices=["cases", "bytes"], default="cases", help="the sizes")
    parser.add_argument("--tiny", action="store_true", help="only check that everything runs")
    parser.add_argument("--resume", action="store_true", help="measure only what is missing")
    parser.add_argument("--summarise", action="store_true", help="measure nothing")
    parser.add_argument("--pictures", action="store_true", help="also draw CLAIM/picture.png")
    parser.add_argument("--out", type=Path, help="the folder of results")
    return parser


if __name__ == "__main__":
    main()
