"""The training runs that several claims look at: ours and the peer's, on one core and on two.

Each run is made once a round, and all runs of a round follow each other, so that what is compared
has seen the same machine.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from experiments.runtime_benchmark.claim import CannotMeasureError, Row
from experiments.runtime_benchmark.ideal import NOTHING, ideal_columns
from experiments.runtime_benchmark.processes import check_cores, run_ranks, run_torch

NUM_RANKS = 2


class System(StrEnum):
    """Who trains."""

    JAXPIPE = "jaxpipe"
    """Our runtime, a rank to a core."""
    ONE_DEVICE = "one device"
    """One jitted step of the same model, without our runtime; on two cores, one on each at once."""
    TORCH = "torch"
    """`torch.distributed.pipelining`, a rank to a core, or plain PyTorch on one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One way to train; `how` is a schedule, or on one device the form of the step."""

    system: System
    how: str
    cores: int = NUM_RANKS


def measure(
    cases: Mapping[str, Any],
    runs: Sequence[Run],
    *,
    torch_python: Path | None,
    once: Callable[[Row, Callable[[], Sequence[Row]]], list[Row]],
) -> list[Row]:
    """Make all runs, round by round, and return a row for each step but the first of each run.

    `once` makes each run, or returns the rows that an earlier command has left of it. Runs of the
    peer are left out without its Python.

    Raises:
        CannotMeasureError: there are too few cores.
    """
    check_cores(needed=NUM_RANKS)
    rows: list[Row] = []
    for number in range(cases["work"]["rounds"]):
        for run in runs:
            if run.system is System.TORCH and torch_python is None:
                continue
            columns = {
                "system": run.system.value,
                "how": run.how,
                "cores": run.cores,
                "round": number,
            }
            rows += once(columns, partial(_rows, cases, run, torch_python))
    return rows


def of(rows: Sequence[Row], runs: Sequence[Run]) -> list[Row]:
    """Return the rows of some runs.

    Raises:
        CannotMeasureError: one of them was not made.
    """
    made = {_key(row) for row in rows}
    for run in runs:
        if (run.system.value, run.how, str(run.cores)) not in made:
            raise CannotMeasureError(
                f"there is no run of {run.system}, {run.how}; for torch give `--torch-python`"
            )
    wanted = {(run.system.value, run.how, str(run.cores)) for run in runs}
    return [row for row in rows if _key(row) in wanted]


def _key(row: Row) -> tuple[Any, Any, str]:
    return row["system"], row["how"], str(row["cores"])


def _result(cases: Mapping[str, Any], run: Run, torch_python: Path | None) -> Any:
    task = _task(cases, run)
    if run.system is System.TORCH:
        assert torch_python is not None, run
        return run_torch(torch_python, task, num_ranks=run.cores)
    program = "pipeline" if run.system is System.JAXPIPE else "one_device"
    return run_ranks(program, task, num_ranks=run.cores)


def _task(cases: Mapping[str, Any], run: Run) -> dict[str, Any]:
    work = cases["work"]
    plan: dict[str, Any] = {"replicas": 1, "microbatch": work["microbatch"]}
    if run.cores > 1 and run.system is not System.ONE_DEVICE:
        plan |= {"stages": run.cores, "schedule": run.how, "cut": work["cut"]}
    else:
        plan |= {"stages": 1, "schedule": "gpipe"}
    return {
        "model": cases["model"],
        "plan": plan,
        "batch": work["batch"],
        "steps": work["steps"] + 1,
        "form": run.how,
    }


def _rows(cases: Mapping[str, Any], run: Run, torch_python: Path | None) -> list[Row]:
    result = _result(cases, run, torch_python)
    work, rows = cases["work"], []
    batches = run.cores if run.system is System.ONE_DEVICE else 1
    for step, step_s in enumerate(result["step_s"][1:], start=1):
        ideal = NOTHING
        if run.system is System.JAXPIPE:
            spans = [span for span in result["spans"] if span["step"] == step]
            num_microbatches = work["batch"] // work["microbatch"]
            ideal = ideal_columns(
                spans, step_s=step_s, schedule=run.how, num_microbatches=num_microbatches
            )
        rows.append(
            {
                "step": step,
                "step_s": step_s,
                "rank_0_cpu_s": result["cpu_s"][step],
                "load": os.getloadavg()[0],
                "tokens_per_s": batches * work["batch"] * cases["model"]["sequence"] / step_s,
                "loss": result["losses"][step],
                "compile_s": result.get("compile_s", ""),
                **ideal,
            }
        )
    return rows
