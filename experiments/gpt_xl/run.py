"""Train GPT-3 XL on the cores of this machine: `python -m experiments.gpt_xl.run xl`.

Profiles, trains, repeats the last steps from a checkpoint, exports, and trains the first steps on
one device, layer by layer; see `cases.toml` for the sizes. Writes `results/SIZE-*.csv`.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from typing import Any

import tyro

from experiments.case_tree import Tree, case_tree
from experiments.gpt_xl.layer_by_layer import LayerByLayer
from experiments.table import Row, markdown, write_csv
from jaxpipe.config import Config, config_from, job_from
from jaxpipe.interchange import read_model
from jaxpipe.plan import Plan, read_resolved_plan
from jaxpipe.plan.cost import Profile, write_profile
from jaxpipe.profile.kept_profile import measured_profile
from jaxpipe.propose.machine_costs import profile_task
from jaxpipe.run.forecast.simulate_step import simulate_step
from jaxpipe.runtime.checkpoint import open_checkpoint
from jaxpipe.runtime.data import Source, prepare
from jaxpipe.runtime.metrics.records import StepMetrics, read_metrics
from jaxpipe.simulate.plan_step import end_s
from jaxpipe.topo.toml_text import toml_text
from jaxpipe.trace import Lane, Trace, read_chrome

_HERE = Path(__file__).parent
_CASES = _HERE / "cases.toml"
_TIMEOUT_S = 7200.0
_COMPARED_STEPS = 2
_FIRST_STEPS = 2
"""Not timed: connections open, caches fill."""


def main(
    size: tyro.conf.Positional[str],
    *,
    results: Path = _HERE / "results",
    steps: int | None = None,
    profile: bool = True,
) -> None:
    """Run one size of `cases.toml`: xl, xl-6-float32, xl-2-regions or tiny.

    Args:
        size: its name.
        results: the folder of the tables.
        steps: other than those of `cases.toml`, at least 3.
        profile: measure the parts of the model alone, and predict the step by them.
    """
    cases = tomllib.loads(_CASES.read_text())
    if size not in cases or size == "base":
        known = ", ".join(name for name in cases if name != "base")
        raise SystemExit(f"`size` must be one of {known}, not {size!r}")
    if steps is not None and steps <= _COMPARED_STEPS:
        raise SystemExit(f"`--steps` must be at least {_COMPARED_STEPS + 1}, not {steps}")
    with tempfile.TemporaryDirectory(prefix="gpt-xl-") as name:
        folder = Path(name)
        tree = case_tree(cases[size], cases["base"], run=folder / "run", data=folder / "data")
        tree["train"]["steps"] = steps or tree["train"]["steps"]
        tree["checkpoint"]["every"] = tree["train"]["steps"] - 1
        emulate, tolerance = tree.pop("emulate", None), cases[size]["tolerance"]
        tables = trial(tree, folder, emulate=emulate, tolerance=tolerance, measures=profile)
        for table, rows in tables:
            write_csv(rows, results / f"{size}-{table}.csv", number=".6g")
            print(markdown(rows), end="\n\n", flush=True)


def trial(
    tree: Tree,
    folder: Path,
    *,
    emulate: Mapping[str, Any] | None,
    tolerance: float,
    measures: bool,
) -> Iterator[tuple[str, Sequence[Row]]]:
    """Yield the tables of a size with their names: stages, facts of the run, and steps.

    Raises:
        RuntimeError: a command failed, losses differ by more than the tolerance of the size, or
            resumed steps or exported tensors differ at all.
    """
    prepare(Source(), folder / "data")
    config, run = config_from(tree), Path(tree["run"]["folder"])
    task = profile_task(config, microbatches=(config.plan.microbatch or 1,))
    profile = measured_profile(task, keep=False).value if measures else None
    _jaxpipe(_emulated(emulate), "train", str(_written(tree, folder)))
    load = os.getloadavg()[0]
    metrics, trace = read_metrics(run / "metrics.jsonl"), read_chrome(run / "trace.json")
    plan = read_resolved_plan(run / "plan.toml").plan
    yield "stages", _stage_rows(plan, profile, trace)
    steps_s = [step.step_s for step in metrics[_FIRST_STEPS:]]
    facts = {
        **_predictions(tree, profile, trace, folder),
        "measured_s": median(steps_s),
        "lowest_s": min(steps_s),
        "highest_s": max(steps_s),
        "load": load,
        "cores": len(os.sched_getaffinity(0)),
        "resumed_steps_equal": _resume(metrics, emulate, tree, folder),
        "exported_tensors_equal": _export(run, folder),
        "checkpoint_gb": _bytes_of(_checkpoint(run)) / 1e9,
        # Of a process, with the pages that it shares with others.
        "largest_process_gb": getrusage(RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e9,
    }
    yield "facts", [facts]
    losses = _one_device_losses(config, plan)
    yield "steps", _step_rows(metrics, losses, tolerance=tolerance)


def _emulated(emulate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the words before a command that runs over emulated links."""
    if emulate is None:
        return ()
    scale = f"{emulate['scale']:g}"
    return ("emulate", emulate["cluster"], "--scale", scale, "--", *_PYTHON, "jaxpipe")


_PYTHON = (sys.executable, "-P", "-m")


def _jaxpipe(before: Sequence[str], *arguments: str) -> None:
    """Run a command of jaxpipe, with its output in that of this process.

    Raises:
        RuntimeError: it failed.
    """
    command = (*_PYTHON, "jaxpipe", *before, *arguments)
    done = subprocess.run(command, check=False, timeout=_TIMEOUT_S)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} exited with {done.returncode}")


def _written(tree: Tree, folder: Path) -> Path:
    file = folder / "config.toml"
    file.write_text(toml_text(tree))
    return file


def _predictions(
    tree: Tree, profile: Profile | None, trace: Trace, folder: Path
) -> dict[str, float | str]:
    """Return the simulated seconds of a step of the plan that ran: of a profile, and of its trace.

    With the computes of the trace, what is left is messages, order and the update.
    """
    path, paced = folder / "profile.json", {"ideal": True}
    if profile is not None:
        write_profile(profile, path)
        paced |= {"profile": str(path)}
    ran = {"cluster": tree["plan"]["cluster"], "file": f"{tree['run']['folder']}/plan.toml"}
    config = config_from({**tree, "plan": ran, "paced": paced})
    return {
        "predicted_s": "" if profile is None else end_s(simulate_step(config)),
        "predicted_with_measured_computes_s": end_s(simulate_step(config, measured=trace)),
    }


def _resume(
    metrics: Sequence[StepMetrics],
    emulate: Mapping[str, Any] | None,
    tree: Tree,
    folder: Path,
) -> str:
    """Repeat the steps after the checkpoint before the last one; return which.

    Raises:
        RuntimeError: a loss differs.
    """
    run, last = Path(tree["run"]["folder"]), metrics[-1].step
    shutil.rmtree(_checkpoint(run))
    first = open_checkpoint(_checkpoint(run)).step + 1
    _jaxpipe(_emulated(emulate), "train", str(_written(tree, folder)), "--resume")
    losses = {step.step: step.loss for step in read_metrics(run / "metrics.jsonl")}
    for step in metrics:
        if losses[step.step] != step.loss:
            raise RuntimeError(f"step {step.step} resumed: {losses[step.step]}, not {step.loss}")
    return f"{first} to {last}"


def _checkpoint(run: Path) -> Path:
    """Return the folder of the newest checkpoint of a run."""
    return max((run / "checkpoints").glob("step-*"), key=lambda path: open_checkpoint(path).step)


def _bytes_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def _export(run: Path, folder: Path) -> int:
    """Export the newest checkpoint; return the number of its tensors, which are read back.

    Raises:
        RuntimeError: a tensor differs.
    """
    _jaxpipe((), "export", str(run), "--out", str(folder / "exported"))
    checkpoint, num_tensors = open_checkpoint(_checkpoint(run)), 0
    for tensor in read_model(folder / "exported")[1]:
        saved = checkpoint.read([tensor.name])[tensor.name].astype("float32")
        if not (tensor.array() == saved).all():
            raise RuntimeError(f"the exported tensor {tensor.name} differs from the checkpoint")
        num_tensors += 1
    return num_tensors


def _one_device_losses(config: Config, plan: Plan) -> list[float]:
    """Return the losses of the first steps, of one device."""
    one = LayerByLayer(job_from(config, plan))
    state = one.start()
    return [one.step(state, step=step) for step in range(_COMPARED_STEPS)]


def _step_rows(
    metrics: Sequence[StepMetrics], losses: Sequence[float], *, tolerance: float
) -> list[Row]:
    rows: list[Row] = []
    for step in metrics:
        has_loss = step.step <= len(losses)
        lost = losses[step.step - 1] if has_loss else step.loss
        if abs(step.loss - lost) > tolerance * lost:
            raise RuntimeError(f"the loss of step {step.step} is {step.loss}, of one device {lost}")
        rows.append(
            {
                "step": step.step,
                "loss": f"{step.loss:.6f}",
                "one device": f"{lost:.6f}" if has_loss else "",
                "seconds": step.step_s,
            }
        )
    return rows


def _stage_rows(plan: Plan, profile: Profile | None, trace: Trace) -> list[Row]:
    """Return seconds of the computes of each stage for a microbatch: profiled, and in the trace."""
    scaled = profile and profile.scaled(microbatch=plan.microbatch)
    rows: list[Row] = []
    for stage in range(plan.num_stages):
        part = scaled and scaled.stage(plan.cut, stage)
        for name in ("forward", "backward"):
            profiled_s = part and getattr(part, f"{name}_s")
            measured_s = median(
                span.end_s - span.start_s
                for span in trace.spans
                if span.lane is Lane.COMPUTE and span.stage == stage and span.name == name
            )
            rows.append(
                {
                    "stage": stage,
                    "compute": name,
                    "profiled s": profiled_s or "",
                    "measured s": measured_s,
                    "ratio": profiled_s / measured_s if profiled_s else "",
                }
            )
    return rows


if __name__ == "__main__":
    tyro.cli(main)
