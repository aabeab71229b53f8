"""bfloat16 beside float32 on equal tokens, and beside float32 with a slightly other rate."""

from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from experiments.codecs.curve import Curve, run_case, write_curves
from experiments.finetune.command import jaxpipe
from experiments.table import Row

FORMATS = {
    "float32": (),
    "bfloat16": ("model.compute_dtype=bfloat16",),
    "bfloat16, parameters too": ("model.compute_dtype=bfloat16", "model.param_dtype=bfloat16"),
    # As far from the learning rate as two neighbours in bfloat16: what a small change grows into.
    "float32, rate + 0.4 %": ("optimizer.learning_rate=3.012e-3",),
}
EARLY = 10
"""Steps before a small difference has grown into another training."""


def trained(case: Mapping[str, Any], curves: Path) -> list[Row]:
    """Train each model in each format with each seed, and return a row for each run.

    The steps of all runs go to the file `curves`, each as it ends.
    """
    jaxpipe("data", "prepare", "--out", case["data"], "--if-missing")
    rows: list[Row] = []
    steps: list[Curve] = []
    for model, settings in case["models"].items():
        exact: dict[int, Curve] = {}
        for seed in case["seeds"]:
            for name, of_format in FORMATS.items():
                changes = [
                    *case["settings"],
                    *settings,
                    *of_format,
                    f"data.folder={case['data']}",
                    f"run.seed={seed}",
                ]
                named = {"name": f"{model}, {name}, seed {seed}"}
                curve = run_case(named, config=case["config"], settings=changes)
                steps.append(curve)
                write_curves(steps, curves)
                exact.setdefault(seed, curve)
                rows.append(_row(model, name, seed, curve, exact[seed]))
                print(rows[-1], flush=True)
    return rows


def _row(model: str, name: str, seed: int, curve: Curve, exact: Curve) -> Row:
    apart = [abs(a.loss - b.loss) / b.loss for a, b in zip(curve.steps, exact.steps, strict=True)]
    (_, loss), (_, of_exact) = curve.held_out[-1], exact.held_out[-1]
    return {
        "model": model,
        "format": name,
        "seed": seed,
        "steps": len(curve.steps),
        "held-out loss": f"{loss:.4f}",
        "difference from float32": f"{loss - of_exact:+.4f}",
        f"worst of the first {EARLY} steps, %": f"{100 * max(apart[:EARLY]):.3f}",
        "mean of all steps, %": f"{100 * mean(apart):.2f}",
    }
