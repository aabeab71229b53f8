"""Measure claims, and write their tables and pictures.

    python -m experiments.runtime_benchmark.run [CLAIM ...] [--torch-python PATH]
                              [--mpich-python PATH] [--cases NAME] [--out FOLDER]
                              [--tiny] [--resume] [--summarise]

Without names all claims are measured. `cases.toml` holds all sizes; `--cases bytes` takes what
`bytes.toml` says instead, into `results/bytes`; with `--tiny` the sizes of `tiny.toml` are taken,
with which everything runs in seconds and no number means anything. With `--summarise` nothing is
measured: the raw tables in the folder are summarised and drawn anew. With `--resume` only what
their raw tables do not hold yet is measured.
"""

import argparse
import json
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from experiments.runtime_benchmark.claim import Bench, CannotMeasureError, Claim, Row
from experiments.runtime_benchmark.claims.all_reduce import ALL_REDUCE
from experiments.runtime_benchmark.claims.crossover import CROSSOVER
from experiments.runtime_benchmark.claims.efficiency import EFFICIENCY
from experiments.runtime_benchmark.claims.gpu import GPU
from experiments.runtime_benchmark.claims.library import LIBRARY
from experiments.runtime_benchmark.claims.one_device import ONE_DEVICE
from experiments.runtime_benchmark.claims.overlap import OVERLAP
from experiments.runtime_benchmark.claims.torch import TORCH
from experiments.runtime_benchmark.claims.transport import TRANSPORT
from experiments.runtime_benchmark.machine import describe
from experiments.runtime_benchmark.raw_table import RawTable
from experiments.runtime_benchmark.tables import markdown, read_csv, write_csv
from experiments.runtime_benchmark.training import measure

_HERE = Path(__file__).parent
CLAIMS: Mapping[str, Claim] = {
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


def measure_claim(name: str, bench: Bench, out: Path) -> None:
    """Measure one claim, and write its raw table and what it was measured on into `out`."""
    machine = describe()
    raw = CLAIMS[name].measure(bench)
    machine["load_1_5_15_min_after"] = describe()["load_1_5_15_min"]
    write_csv(raw, out / f"{name}_raw.csv")
    (out / f"{name}_machine.json").write_text(json.dumps(machine, indent=2) + "\n")


def summarise_claim(name: str, out: Path) -> None:
    """Summarise and draw a raw table in `out`."""
    claim, raw = CLAIMS[name], read_csv(out / f"{name}_raw.csv")
    summary = claim.summarise(raw)
    write_csv(summary, out / f"{name}.csv")
    claim.draw(raw if claim.draws_raw else summary, out / f"{name}.png")
    print(markdown(summary), flush=True)


def show(name: str, bench: Bench | None, out: Path) -> None:
    """Print and write everything about a claim; without a bench, of what was measured before."""
    print(f"\n{name}: {CLAIMS[name].aim}", flush=True)
    try:
        if bench is not None:
            measure_claim(name, bench, out)
        summarise_claim(name, out)
    except CannotMeasureError as reason:
        print(f"{name} is left out: {reason}", flush=True)
    except FileNotFoundError as error:
        print(f"{name} is left out: {error.filename} is not there", flush=True)


def cases_of(name: str) -> dict[str, Any]:
    """Return the sizes that a file beside this one holds; what it lacks is as in `cases.toml`."""
    usual, own = (tomllib.loads((_HERE / f"{each}.toml").read_text()) for each in ("cases", name))
    return {key: {**section, **own.get(key, {})} for key, section in usual.items()}


def benches_of(given: argparse.Namespace, names: Sequence[str], out: Path) -> dict[str, Bench]:
    """Return what each claim is measured with; their training runs are made once."""
    cases = cases_of("tiny" if given.tiny else given.cases)
    runs = tuple(dict.fromkeys(run for name in names for run in CLAIMS[name].runs(cases)))
    table = RawTable(out / "training_raw.csv", resumes=given.resume)
    training = partial(measure, cases, runs, torch_python=given.torch_python, once=table.once)
    once = cache(training)

    def rows() -> Sequence[Row]:
        return once()

    return {
        name: Bench(
            cases=cases,
            training=rows,
            once=RawTable(out / f"{name}_raw.csv", resumes=given.resume).once,
            mpich_python=given.mpich_python,
        )
        for name in names
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure the claims that the command line names, or all of them."""
    parser = argparse.ArgumentParser(description="Measure the claims about the runtime.")
    parser.add_argument("claims", nargs="*", choices=[[], *CLAIMS], metavar="CLAIM")
    parser.add_argument("--torch-python", type=Path, help="a Python that has PyTorch")
    parser.add_argument("--mpich-python", type=Path, help="a Python that has jaxpipe and MPICH")
    parser.add_argument("--cases", choices=["cases", "bytes"], default="cases", help="which sizes")
    parser.add_argument("--tiny", action="store_true", help="only check that everything runs")
    parser.add_argument("--resume", action="store_true", help="measure only what is missing")
    parser.add_argument("--summarise", action="store_true", help="measure nothing")
    parser.add_argument("--out", type=Path, help="a folder, instead of results/ or runs/tiny")
    given = parser.parse_args(arguments)
    out = given.out or (Path("runs/tiny") if given.tiny else _results_of(given.cases))
    out.mkdir(parents=True, exist_ok=True)
    names = tuple(given.claims or CLAIMS)
    benches = {} if given.summarise else benches_of(given, names, out)
    for name in names:
        show(name, benches.get(name), out)


def _results_of(cases: str) -> Path:
    return _HERE / "results" / ("" if cases == "cases" else cases)


if __name__ == "__main__":
    main()
