"""Muon beside AdamW on equal tokens: each with the best learning rate of its grid, three seeds."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from experiments.codecs.curve import run_case
from experiments.finetune.tune import prepare
from experiments.table import Row


def rows(cases: Mapping[str, Any]) -> Iterator[Row]:
    """Yield a row for each run as it ends; the first seed tries every learning rate."""
    prepare(cases)
    case = cases["optimizers"]
    first, *others = case["seeds"]
    for name in ("adamw", "muon"):
        tried = {rate: _trained(case, name, rate, first) for rate in case[name]}
        yield from tried.values()
        best = min(tried, key=lambda rate: tried[rate]["held-out loss"])
        for seed in others:
            yield _trained(case, name, best, seed)


def summary(runs: Sequence[Row]) -> list[Row]:
    """Return the mean and the range over seeds of each optimizer's best learning rate."""
    found: list[Row] = []
    for name in ("adamw", "muon"):
        own = [row for row in runs if row["optimizer"] == name]
        rates = [row["learning rate"] for row in own]
        best = max(set(rates), key=rates.count)  # the one that ran with every seed
        losses = [float(row["held-out loss"]) for row in own if row["learning rate"] == best]
        found.append(
            {
                "optimizer": name,
                "learning rate": best,
                "seeds": len(losses),
                "held-out loss, mean": f"{mean(losses):.4f}",
                "from": f"{min(losses):.4f}",
                "to": f"{max(losses):.4f}",
            }
        )
    return found


def _trained(case: Mapping[str, Any], name: str, rate: float, seed: int) -> dict[str, Any]:
    changes = [
        *case["settings"],
        f"train.steps={case['steps']}",
        f"optimizer.name={name}",
        f"optimizer.learning_rate={rate}",
        f"run.seed={seed}",
    ]
    curve = run_case({"name": name}, config=case["config"], settings=changes)
    (_, loss) = curve.held_out[-1]
    row = {"optimizer": name, "learning rate": rate, "seed": seed, "steps": case["steps"]}
    row |= {"held-out loss": loss, "training loss, last 20": curve.training_loss(last=20)}
    print(row, flush=True)
    return row
