"""Train with stages on unlike submeshes, as Alpa's searches place them.

    python -m experiments.alpa_gpt.executed

Each case searches stages for a model of Alpa on V100s (predicted), writes the plan, and trains a
narrow GPT with as many layers by it: a process for each stage, on as many emulated devices as its
submesh has. The losses are held against those of one device.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from experiments.table import Row, markdown, write_csv
from jaxpipe.runtime.data import Source, prepare
from jaxpipe.runtime.metrics.records import read_metrics
from jaxpipe.topo.toml_text import toml_text

_RESULTS = Path(__file__).parent / "results"
_ROOT = Path(__file__).parents[2]
_STEPS = 10
_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A search: layers of a model of Alpa, devices in hosts of eight, samples of a step."""

    model: str
    layers: int
    devices: int
    batch: int


CASES = (
    Case(model="alpa-125m", layers=4, devices=3, batch=32),
    Case(model="alpa-350m", layers=6, devices=6, batch=64),
    Case(model="alpa-125m", layers=5, devices=7, batch=8),
    Case(model="alpa-1.3b", layers=6, devices=7, batch=16),
    Case(model="alpa-350m", layers=6, devices=6, batch=16),
)


def main() -> None:
    """Search and train all cases, and write `results/executed.csv`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = folder / "text.txt"
        text.write_text("".join(f"{i} plus {i} is {2 * i}; " for i in range(4000)))
        prepare(Source(path=text), folder / "data")
        rows = [_row(case, folder / str(number)) for number, case in enumerate(CASES)]
    write_csv(rows, _RESULTS / "executed.csv")
    print(markdown(rows))


def _row(case: Case, folder: Path) -> Row:
    folder.mkdir()
    found = _searched(case, folder)
    plan = {"file": str(folder / "plan.toml"), "cluster": found["cluster"]}
    losses = {
        "plan": _losses(case, folder / "by-plan", plan, num_devices=case.devices),
        "one": _losses(case, folder / "alone", {"stages": 1, "replicas": 1}, num_devices=1),
    }
    apart = max(abs(a - b) for a, b in zip(losses["plan"], losses["one"], strict=True))
    shapes = [f"{each['dp']} x {each['op']}" for each in found["stages"]]
    layers = [each["layers"][1] - each["layers"][0] for each in found["stages"]]
    return {
        "model": case.model,
        "devices": case.devices,
        "batch": case.batch,
        "layers": " + ".join(map(str, layers)),
        "dp x op": ", ".join(shapes),
        "search s (measured)": f"{found['search_s']:.1f}",
        "step s on V100s (predicted)": f"{found['predicted_s']:.4f}",
        "last loss (measured)": f"{losses['plan'][-1]:.6f}",
        "losses apart, most": f"{apart:.1e}",
    }


def _searched(case: Case, folder: Path) -> Mapping[str, Any]:
    out = folder / "stages.json"
    options = ("--model", case.model, "--layers", case.layers, "--mesh", case.devices)
    plan = ("--batch", case.batch, "--remat", "--plan", folder / "plan.toml", "-o", out)
    _run(("autoshard", "stages", *map(str, options), *map(str, plan)))
    return msgspec.json.decode(out.read_bytes())


def _losses(
    case: Case, folder: Path, plan: Mapping[str, Any], *, num_devices: int
) -> Sequence[float]:
    folder.mkdir()
    tree: dict[str, Any] = {
        "run": {"folder": str(folder / "run"), "seed": 1, "pictures": False},
        "data": {"folder": str(folder.parents[1] / "data")},
        "model": {
            "num_layers": case.layers,
            "dim": 64,
            "num_heads": 8,
            "sequence": 64,
            "vocabulary": 256,
            "tied": False,
        },
        "plan": dict(plan),
        "train": {"steps": _STEPS, "batch": case.batch, "eval_batches": 1},
        "sample": {"tokens": 0},
    }
    (folder / "run.toml").write_text(toml_text(tree))
    _run(("train", str(folder / "run.toml")), num_devices=num_devices)
    return [each.loss for each in read_metrics(folder / "run" / "metrics.jsonl")]


def _run(arguments: Sequence[str], *, num_devices: int = 1) -> None:
    forced = f"--xla_force_host_platform_device_count={num_devices}"
    environment = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": forced, "PYTHONPATH": str(_ROOT)}
    done = subprocess.run(
        (sys.executable, "-m", "jaxpipe", *arguments),
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"jaxpipe {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
