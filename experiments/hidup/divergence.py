"""Trace why a pipeline and an SPMD program drift apart: `python -m experiments.hidup.divergence`.

A pipeline of two ranks trains, and its parameters are kept after each step. From the *same*
parameters, the SPMD program then computes the loss and the gradients of the next step. If they are
equal at all steps, there is no bug in either program, only rounding that grows. How it grows is
compared with a program that is trained twice, from parameters that differ in their last bit.
"""

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jaxpipe
from experiments.hidup.learn import DATA, tree_of
from experiments.hidup.learn_spmd import DEVICES
from experiments.table import Row, markdown, write_csv
from jaxpipe.baselines.autoshard.hlo import run_python
from jaxpipe.config import config_from
from jaxpipe.runtime.metrics.records import StepMetrics

_HERE = Path(__file__).parent
_STEPS = 60
_SHOWN = (1, 12, 20, 25, 30, 35, 40, 45, 50, 55, 60)


def main(names: Sequence[str]) -> None:
    """Trace the named model; by default `bert-switch-tiny`."""
    name = names[0] if names else "bert-switch-tiny"
    case = tomllib.loads((_HERE / "cases.toml").read_text())[name]
    with TemporaryDirectory() as folder:
        found = rows(name, case | {"steps": _STEPS}, folder=Path(folder))
    write_csv(found, _HERE / "results" / "divergence.csv")
    print(shown(found))


def shown(found: Sequence[Row]) -> str:
    """Return the table of some steps: the one in NOTES.md."""
    return markdown([row for row in found if int(row["step"]) in _SHOWN])


def rows(name: str, case: dict[str, Any], *, folder: Path) -> list[Row]:
    """Return for each step how far the programs are apart.

    Column by column: the losses of both runs; the loss and the norm of the gradients (relative) of
    the SPMD program at the pipeline's parameters; the tokens of the batch that the two runs send to
    different experts; the losses of one program that is trained twice, with experts and dense.
    """
    DATA[case["data"]](folder)
    tree = tree_of(name, case, every=1, folder=folder)
    tree["train"]["eval_batches"] = 1
    seen: list[StepMetrics] = []
    jaxpipe.train(config_from(tree), observe=seen.append)
    spmd = run_python(
        "experiments.hidup.divergence_spmd", tree, num_devices=DEVICES, path=_HERE.parents[1]
    )
    columns = zip(
        seen,
        spmd["free_losses"],
        spmd["forced_losses"],
        spmd["forced_norms"],
        spmd["rerouted"],
        spmd["margins"],
        spmd["twice"],
        spmd["twice_dense"],
        strict=True,
    )
    return [
        {
            "step": metrics.step,
            "both runs": f"{abs(metrics.loss - free):.1e}",
            "same parameters: loss": f"{abs(metrics.loss - forced):.1e}",
            "same parameters: gradient": f"{abs(norm / _norm(metrics) - 1):.1e}",
            "tokens with another expert": rerouted,
            "smallest margin of a token": f"{margin:.1e}",
            "one program twice": f"{twice:.1e}",
            "one program twice, dense": f"{dense:.1e}",
        }
        for metrics, free, forced, norm, rerouted, margin, twice, dense in columns
    ]


def _norm(metrics: StepMetrics) -> float:
    assert metrics.grad_norm is not None, metrics
    return metrics.grad_norm


if __name__ == "__main__":
    main(sys.argv[1:])
