"""Muon beside AdamW on equal tokens: one grid of learning rates for both, then three seeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from experiments.codecs.curve import Curve, run_case, write_curves
from experiments.finetune.tune import prepare
from experiments.table import Row

OPTIMIZERS = ("adamw", "muon")


def trained(cases: Mapping[str, Any], curves: Path) -> list[Row]:
    """Train with every rate and the first seed, then with the best rate and the other seeds.

    Return a row per run; the steps of all runs go to the file `curves`, each as it ends.
    """
    prepare(cases)
    case = cases["optimizers"]
    first, *others = case["seeds"]
    rows: list[Row] = []
    steps: list[Curve] = []

    def run(name: str, rate: float, seed: int) -> None:
        curve = _curve(case, name, rate, seed)
        steps.append(curve)
        write_curves(steps, curves)
        rows.append(_row(curve, name, rate, seed))
        print(rows[-1], flush=True)

    for name in OPTIMIZERS:
        for rate in case["learning_rates"]:
            run(name, rate, first)
    for seed in others:
        for name in OPTIMIZERS:
            run(name, best_rate(rows, name), seed)
    return rows


def best_rate(rows: Sequence[Row], name: str) -> float:
    """Return the learning rate of the lowest held-out loss of an optimizer."""
    own = [row for row in rows if row["optimizer"] == name]
    return float(min(own, key=lambda row: float(row["held-out loss"]))["learning rate"])


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return the mean and the range over seeds, of the learning rate that every seed had."""
    found: list[Row] = []
    for name in OPTIMIZERS:
        own = [row for row in rows if row["optimizer"] == name]
        rates = [float(row["learning rate"]) for row in own]
        rate = max(set(rates), key=rates.count)
        losses = [float(row["held-out loss"]) for row in own if row["learning rate"] == rate]
        found.append(
            {
                "optimizer": name,
                "learning rate": rate,
                "seeds": len(losses),
                "held-out loss, mean": f"{mean(losses):.4f}",
                "from": f"{min(losses):.4f}",
                "to": f"{max(losses):.4f}",
            }
        )
    return found


def _curve(case: Mapping[str, Any], name: str, rate: float, seed: int) -> Curve:
    changes = [
        *case["settings"],
        f"optimizer.name={name}",
        f"optimizer.learning_rate={rate}",
        f"run.seed={seed}",
    ]
    named = {"name": f"{name}, rate {rate:g}, seed {seed}"}
    return run_case(named, config=case["config"], settings=changes)


def _row(curve: Curve, name: str, rate: float, seed: int) -> Row:
    (_, loss) = curve.held_out[-1]
    return {
        "optimizer": name,
        "learning rate": rate,
        "seed": seed,
        "steps": len(curve.steps),
        "held-out loss": loss,
        "training loss, last 20": curve.training_loss(last=20),
    }
