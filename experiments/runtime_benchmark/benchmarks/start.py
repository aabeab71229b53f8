"""From the command `jaxpipe train` to the first step: the first start of a model, and later ones.

Each run has a cache of its own, which its first start fills. The first step begins once rank 0
writes the first line of its metrics, when all ranks have compiled their stages. Beside it: the
imports of jax, flax and optax alone, in one process.
"""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from experiments.runtime_benchmark.bench import Bench, Claim, Measurement
from experiments.runtime_benchmark.picture import bars
from experiments.table import Row, grouped, numbers

_CONFIG = Path(__file__).parents[2] / "quickstart" / "two_region.toml"
_IMPORTS = "import jax, flax.nnx, optax"
_POLL_S = 0.005
_TIMEOUT_S = 600.0


def measurements(bench: Bench) -> list[Measurement]:
    """Return one part for each plan and depth: a row per start."""
    case = bench.cases["start"]
    return [
        Measurement(
            columns={"stages": stages, "replicas": replicas, "layers": layers},
            measure=partial(_measure, case, stages=stages, replicas=replicas, layers=layers),
        )
        for stages, replicas, layers in case["runs"]
    ]


def _measure(case: Mapping[str, Any], **sizes: int) -> list[Row]:
    with TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_CACHE_HOME": f"{folder}/caches"}
        data = f"{folder}/data"
        _run(["jaxpipe", "data", "prepare", "--out", data], environment)
        rows = []
        for number in range(1 + case["count"]):
            imports_s, _ = _run(["-c", _IMPORTS], environment)
            run = Path(folder) / f"run-{number}"
            command = _command(case, data=data, run=run, **sizes)
            first_step_s, cpu_s = _run(command, environment, until=run / "metrics.jsonl")
            start = "first" if number == 0 else "later"
            columns = {"imports_s": imports_s, "first_step_s": first_step_s, "cpu_s": cpu_s}
            rows.append({"start": start, **columns})
        return rows


def _command(
    case: Mapping[str, Any], *, data: str, run: Path, stages: int, replicas: int, layers: int
) -> list[str]:
    cluster = f"homogeneous:hosts={stages * replicas}"
    plan = {"stages": stages, "replicas": replicas, "microbatch": 1, "cluster": cluster}
    settings = {
        "run.folder": str(run),
        "run.pictures": "false",
        "data.folder": data,
        "model.num_layers": layers,
        **{f"model.{name}": value for name, value in case["model"].items()},
        **{f"plan.{name}": value for name, value in plan.items()},
        "train.steps": 1,
        "train.batch": 2 * replicas,
        "train.eval_batches": 1,
        "sample.tokens": 0,
    }
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    return ["jaxpipe", "train", str(_CONFIG), *words]


def _run(
    command: Sequence[str], environment: Mapping[str, str], *, until: Path | None = None
) -> tuple[float, float]:
    """Return the seconds until a file has a line, or the end, and the processor seconds of all."""
    words = command if command[0] == "-c" else ("-m", *command)
    before, begin_s, seconds = _cpu_s(), time.perf_counter(), None
    process = subprocess.Popen(
        [sys.executable, "-P", *words], env=environment, stdout=subprocess.DEVNULL
    )
    while process.poll() is None and time.perf_counter() < begin_s + _TIMEOUT_S:
        if seconds is None and until is not None and until.exists() and until.stat().st_size:
            seconds = time.perf_counter() - begin_s
        time.sleep(_POLL_S)
    process.kill()
    if process.wait() != 0:
        raise RuntimeError(f"{command} ended with exit code {process.returncode}")
    end_s = time.perf_counter() - begin_s
    return end_s if seconds is None else seconds, _cpu_s() - before


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def summarise(raw: Sequence[Row]) -> list[Row]:
    """Return a row for the first and for later starts of each plan and depth."""
    return [
        {
            "stages": stages,
            "replicas": replicas,
            "layers": layers,
            "start": start,
            **{
                name: median(numbers(rows, name)) for name in ("first_step_s", "cpu_s", "imports_s")
            },
            "aim": "first_step_s < 2" if start == "later" else "",
        }
        for (stages, replicas, layers, start), rows in grouped(
            raw, "stages", "replicas", "layers", "start"
        ).items()
    ]


START = Claim(
    aim="a later start of a model begins its first step within 2 s of the command",
    measurements=measurements,
    summarise=summarise,
    draw=bars(
        "stages",
        "replicas",
        "layers",
        "start",
        value="first_step_s",
        title="From the command to the first step, by stages, replicas and layers (measured)",
        aim=2.0,
    ),
)
