"""Measure claims, and write their tables and pictures.

    python -m experiments.runtime_benchmark.run [CLAIM ...] [--torch-python PATH]
                                                [--mpich-python PATH] [--out FOLDER] [--tiny]

Without names all claims are measured. `cases.toml` holds all sizes; with `--tiny` those of
`tiny.toml` are taken, with which everything runs in seconds and no number means anything.
"""

import argparse
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path

from experiments.runtime_benchmark.claim import Bench, CannotMeasureError, Claim
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
from experiments.runtime_benchmark.tables import markdown, write_csv

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


def show(name: str, bench: Bench, out: Path) -> None:
    """Measure one claim, print its summary, and write everything into `out`."""
    claim = CLAIMS[name]
    machine = describe()
    print(f"{name}: {claim.aim}", flush=True)
    try:
        raw = claim.measure(bench)
    except CannotMeasureError as reason:
        print(f"{name} is left out: {reason}", flush=True)
        return
    summary = claim.summarise(raw)
    write_csv(raw, out / f"{name}_raw.csv")
    write_csv(summary, out / f"{name}.csv")
    claim.draw(raw if claim.draws_raw else summary, out / f"{name}.png")
    machine["load_1_5_15_min_after"] = describe()["load_1_5_15_min"]
    (out / f"{name}_machine.json").write_text(json.dumps(machine, indent=2) + "\n")
    print(markdown(summary), flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Measure the claims that the command line names, or all of them."""
    parser = argparse.ArgumentParser(description="Measure the claims about the runtime.")
    parser.add_argument("claims", nargs="*", choices=[[], *CLAIMS], metavar="CLAIM")
    parser.add_argument("--torch-python", type=Path, help="a Python that has PyTorch")
    parser.add_argument("--mpich-python", type=Path, help="a Python that has jaxpipe and MPICH")
    parser.add_argument("--tiny", action="store_true", help="only check that everything runs")
    parser.add_argument("--out", type=Path, help="a folder, instead of results/ or runs/tiny")
    given = parser.parse_args(arguments)
    out = given.out or (Path("runs/tiny") if given.tiny else _HERE / "results")
    out.mkdir(parents=True, exist_ok=True)
    cases = tomllib.loads((_HERE / ("tiny.toml" if given.tiny else "cases.toml")).read_text())
    bench = Bench(cases=cases, torch_python=given.torch_python, mpich_python=given.mpich_python)
    for name in given.claims or CLAIMS:
        show(name, bench, out)


if __name__ == "__main__":
    main()
