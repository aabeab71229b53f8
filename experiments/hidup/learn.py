"""Train small models in a pipeline of two ranks: `python -m experiments.hidup.learn [MODEL ...]`.

The ranks are threads of this process. The same models then train as SPMD programs on two emulated
devices (`learn_spmd`). Results are written after each model: losses and held-out accuracy as a
table, and curves.
"""

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpipe
from experiments.hidup.labelled_lines import write_lines
from experiments.hidup.learn_spmd import DEVICES
from experiments.hidup.learning_curves import draw_curves
from experiments.table import Row, markdown, read_csv, write_csv
from jaxpipe.baselines.autoshard.hlo import run_python
from jaxpipe.cli.data import SampleKind, prepare
from jaxpipe.config import config_from, restored_model
from jaxpipe.runtime.checkpoint import open_checkpoint
from jaxpipe.runtime.data import open_dataset
from jaxpipe.runtime.metrics.records import StepMetrics
from jaxpipe.runtime.stage.stage import Stage

_HERE = Path(__file__).parent
_CURVES = _HERE / "results" / "learned.csv"
_EVAL_BATCHES = 4


def main(names: Sequence[str]) -> None:
    """Train the named models; by default, all."""
    cases = tomllib.loads((_HERE / "cases.toml").read_text())
    every = cases.pop("every")
    _CURVES.parent.mkdir(exist_ok=True)
    rows: list[Row] = [*read_csv(_CURVES)] if names and _CURVES.exists() else []
    for name in names or cases:
        with TemporaryDirectory() as folder:
            case = cases[name]
            found = _train(name, case, every=case.get("every", every), folder=Path(folder))
        rows = [row for row in rows if row["model"] != name] + found
        write_csv(rows, _CURVES)
        (_HERE / "results" / "learned.md").write_text(markdown(rows) + "\n")
        draw_curves(read_csv(_CURVES), _HERE / "results" / "learned.png")
        print(markdown(found), flush=True)


def tree_of(name: str, case: dict[str, Any], *, every: int, folder: Path) -> dict[str, Any]:
    """Return the configuration of a case."""
    return {
        "run": {"folder": str(folder / "run")},
        "data": {"folder": str(folder / "data")},
        "model": {"preset": name},
        "plan": {
            "cluster": "laptop",
            "stages": 2,
            "replicas": 1,
            "microbatch": case["batch"] // 4,
            "schedule": "1f1b",
        },
        "train": {
            "steps": case["steps"],
            "batch": case["batch"],
            "loop": "scan",
            "eval_every": every,
            "eval_batches": _EVAL_BATCHES,
        },
        "optimizer": {"learning_rate": case["learning_rate"], "warmup_steps": 20},
        "checkpoint": {"every": every, "keep": case["steps"]},
    }


def _train(name: str, case: dict[str, Any], *, every: int, folder: Path) -> list[Row]:
    DATA[case["data"]](folder)
    tree = tree_of(name, case, every=every, folder=folder)
    config = config_from(tree)
    seen: list[StepMetrics] = []

    def observe(metrics: StepMetrics) -> None:
        seen.append(metrics)
        if metrics.step % 10 == 0:
            print(f"{name} step {metrics.step}: loss {metrics.loss:.4f}", flush=True)

    jaxpipe.train(config, observe=observe)
    spmd = run_python(
        "experiments.hidup.learn_spmd", tree, num_devices=DEVICES, path=_HERE.parents[1]
    )
    apart = [abs(each.loss - loss) for each, loss in zip(seen, spmd, strict=True)]
    return [
        {
            "model": name,
            "step": metrics.step,
            "training loss": _mean_loss([each.loss for each in seen], until=metrics.step),
            "training loss, SPMD": _mean_loss(spmd, until=metrics.step),
            "largest difference so far": f"{max(apart[: metrics.step]):.1e}",
            "held-out loss": f"{metrics.eval_loss:.4f}",
            "held-out accuracy": _accuracy(folder, metrics.step) if config.model.classes else "",
        }
        for metrics in seen
        if metrics.eval_loss is not None and metrics.step % every == 0
    ]


def _mean_loss(losses: Sequence[float], *, until: int, last: int = 20) -> str:
    """Return the mean training loss of the last steps, auxiliary loss included."""
    return f"{np.mean(losses[max(0, until - last) : until]):.4f}"


def _accuracy(folder: Path, step: int) -> str:
    """Return the fraction of all held-out samples whose class is the most likely one."""
    path = folder / "run" / "checkpoints" / f"step-{step:08d}"
    model, params = restored_model(open_checkpoint(path))
    whole = Stage(model=model, index=0, num_stages=1, layers=range(model.num_layers))
    dataset = open_dataset(folder / "data", verify=False)
    labels, shape = dataset.labels, dataset.labelled_input
    assert labels is not None, dataset.source
    assert shape is not None, dataset.source
    # One sample at a time within one program: the batch has no part in the classes.
    classify = jax.jit(
        lambda inputs: jax.lax.map(
            lambda one: jnp.argmax(whole.logits(params, one[None])[0]), inputs, batch_size=50
        )
    )
    found = classify(jnp.asarray(np.asarray(dataset.eval, shape.dtype)))
    return f"{np.mean(np.asarray(found) == labels.eval):.1%}"


def _digits(folder: Path) -> None:
    prepare(out=folder / "data", kind=SampleKind.PICTURES, samples=6000)


def _lines(folder: Path) -> None:
    write_lines(folder / "lines.tsv", num_each=3000)
    prepare(
        out=folder / "data",
        kind=SampleKind.LABELLED_TEXT,
        source=folder / "lines.tsv",
        sequence=64,
    )


def _text(folder: Path) -> None:
    prepare(out=folder / "data")


DATA = {"digits": _digits, "lines": _lines, "text": _text}

if __name__ == "__main__":
    main(sys.argv[1:])
