"""Train outer loops and per-step sums on equal tokens: `python -m experiments.outer.run [RUN ...]`.

Runs are named as in the table, without their seed; `--seed N` takes one seed of `cases.toml`. A row
is written after each run, and what `results/losses.csv` has already is not run again.
"""

import argparse
import os
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import jax

from experiments.table import Row, append_csv, markdown, read_csv
from jaxpipe import load_config, train
from jaxpipe.runtime.metrics.records import StepMetrics, read_metrics

_HERE = Path(__file__).parent
_LOSSES = _HERE / "results" / "losses.csv"
_BASELINE = "sums in every step"


def main() -> None:
    """Make the named runs that are missing; by default, all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*")
    parser.add_argument("--seed", type=int)
    given = parser.parse_args()
    cases = tomllib.loads((_HERE / "cases.toml").read_text())
    seeds = cases["seeds"] if given.seed is None else [given.seed]
    with TemporaryDirectory() as cache:
        jax.config.update("jax_compilation_cache_dir", cache)  # all runs compile the same programs
        for seed in seeds:
            for name, settings in runs_of(cases):
                if (given.runs and name not in given.runs) or (name, seed) in _made():
                    continue
                append_csv(_run(cases, name, settings, seed=seed), _LOSSES)
                _report()


def runs_of(cases: dict[str, Any]) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the name and the settings of each run."""
    yield _BASELINE, ()
    for islands, rate in cases["learning_rate"].items():
        for every in cases["every"]:
            yield (
                f"{islands} islands, H {every}",
                (
                    f"outer.islands={islands}",
                    f"outer.every={every}",
                    f"outer.learning_rate={rate}",
                    f"outer.momentum={cases['momentum']}",
                ),
            )
    for each in cases["extra"]:
        yield each["name"], each["settings"]


def _run(cases: dict[str, Any], name: str, settings: Sequence[str], *, seed: int) -> Row:
    with TemporaryDirectory() as folder:
        changes = [*cases["settings"], *settings, f"run.seed={seed}", f"run.folder={folder}/run"]
        config = load_config(cases["config"], changes)
        metrics = read_metrics(train(config).metrics)
    last = metrics[-1]
    assert last.eval_loss is not None, last
    return {
        "run": name,
        "seed": seed,
        "held_out_loss": f"{last.eval_loss:.5f}",
        "training_loss": f"{mean(m.loss for m in metrics[-20:]):.5f}",
        "mb_per_step": f"{_bytes_per_step(metrics) / 1e6:.3f}",
        "load": f"{os.getloadavg()[0]:.1f}",
    }


def _bytes_per_step(metrics: Sequence[StepMetrics]) -> float:
    """Return the bytes between islands, on average; of sums in every step, all bytes."""
    outer = [m.outer_bytes for m in metrics if m.outer_bytes is not None]
    return (sum(outer) if outer else sum(m.sent_bytes for m in metrics)) / len(metrics)


def _made() -> set[tuple[str, int]]:
    rows = read_csv(_LOSSES) if _LOSSES.exists() else []
    return {(row["run"], int(row["seed"])) for row in rows}


def _report() -> None:
    table = markdown(summary(read_csv(_LOSSES)))
    (_HERE / "results" / "summary.md").write_text(table + "\n")
    print(table, flush=True)


def summary(rows: Sequence[dict[str, str]]) -> list[Row]:
    """Return a row per run: its losses by seed, and the mean gap to sums with the same seeds."""
    baseline = {row["seed"]: float(row["held_out_loss"]) for row in rows if row["run"] == _BASELINE}
    found: list[Row] = []
    for name in dict.fromkeys(row["run"] for row in rows):
        own = [row for row in rows if row["run"] == name and row["seed"] in baseline]
        if not own:
            continue
        gaps = [float(row["held_out_loss"]) / baseline[row["seed"]] - 1 for row in own]
        found.append(
            {
                "run": name,
                "held-out loss, by seed": " ".join(f"{float(r['held_out_loss']):.4f}" for r in own),
                "gap": f"{mean(gaps):+.2%}",
                "MB per step": own[0]["mb_per_step"],
            }
        )
    return found


if __name__ == "__main__":
    main()
