"""Islands over a home uplink, as root: `python -m experiments.quorum.uplink`.

Two islands of one rank train what another run has begun: all parameters, and adapters alone. Ranks
are processes over emulated links (`jaxpipe emulate`); the same islands then run without them, whose
losses must be equal. Writes `results/uplink.csv`.
"""

import shutil
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.finetune.command import jaxpipe, settings
from experiments.table import Row, write_csv
from jaxpipe.runtime.metrics.records import StepMetrics, read_metrics

_HERE = Path(__file__).parent
_CLUSTER, _RUNS = _HERE / "home.toml", Path("runs/uplink")
_EMULATE = ("emulate", _CLUSTER, "--engine", "relay", "--", sys.executable, "-m", "jaxpipe")


def main() -> None:
    """Train, and write the table."""
    case = tomllib.loads((_HERE / "cases.toml").read_text())
    uplink = case["uplink"]
    shutil.rmtree(_RUNS, ignore_errors=True)
    base = _RUNS / "base"
    _train(case, (*uplink["begin"], f"run.folder={base}"))
    rows = [row for name in uplink["trained"] for row in _rows(case, name, base)]
    write_csv(rows, _HERE / "results" / "uplink.csv")


def _rows(case: Mapping[str, Any], name: str, base: Path) -> list[Row]:
    """Return the bytes and losses of islands over the emulated links, and without them.

    Raises:
        RuntimeError: a loss differs.
    """
    uplink = case["uplink"]
    changes = [*uplink["settings"], *uplink["trained"][name], f"plan.cluster={_CLUSTER}"]
    runs: dict[str, list[StepMetrics]] = {}
    for links, words in (("home", _EMULATE), ("none", ())):
        folder = _RUNS / f"{name}-{links}"
        _train(case, [*changes, f"run.folder={folder}"], "--from", base, before=words)
        runs[links] = read_metrics(folder / "metrics.jsonl")
    losses = {links: [step.loss for step in metrics] for links, metrics in runs.items()}
    if losses["home"] != losses["none"]:
        raise RuntimeError(f"losses differ: {losses}")
    return [
        {
            "trained": name,
            "links": links,
            "outer_steps": sum(step.outer_bytes is not None for step in metrics),
            "outer_mb": f"{sum(step.outer_bytes or 0 for step in metrics) / 1e6:.3f}",
            "seconds": f"{sum(step.step_s for step in metrics):.1f}",
            "first_loss": f"{metrics[0].loss:.6f}",
            "last_loss": f"{metrics[-1].loss:.6f}",
            "held_out": f"{metrics[-1].eval_loss or 0:.6f}",
        }
        for links, metrics in runs.items()
    ]


def _train(
    case: Mapping[str, Any],
    changes: Sequence[str],
    *words: str | Path,
    before: Sequence[str | Path] = (),
) -> None:
    common = (*case["settings"], *case["uplink"]["common"])
    jaxpipe(*before, "train", case["config"], *settings(*common, *changes), *words)


if __name__ == "__main__":
    main()
