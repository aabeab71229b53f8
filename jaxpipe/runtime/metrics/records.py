"""What a run says of each step, and the JSON lines in which it stays."""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """One step, as measured on rank 0 and summed over ranks.

    `step` counts from 1. `loss` and `eval_loss` are in nats per token, `eval_loss` None where it
    was not measured. `grad_norm` is that before clipping, and None of a step that overflowed and
    was skipped; `skipped_steps` counts these so far, and `loss_scale` is that of the step, None
    where the loss is not scaled. `bubble` is the fraction of the pipeline phase in which ranks did
    not compute; `sent_bytes` is what ranks sent to each other, as codecs have shortened it,
    gradients included; but not what MPI's library sums, nor the parameters that replicas gather.
    `flops_per_s` counts the model's own floating-point operations, over all ranks.
    """

    step: int
    loss: float
    eval_loss: float | None
    grad_norm: float | None
    learning_rate: float
    step_s: float
    tokens_per_s: float
    bubble: float
    sent_bytes: int
    flops_per_s: float
    loss_scale: float | None = None
    skipped_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedMetrics:
    """One step with paced computes over emulated links; nothing was trained.

    `step_s` are emulated seconds, `real_s` those that it took here, over the scale of time. Waits
    ended `late_s` real seconds late on average, and the network heard of messages
    `network_late_s` emulated seconds late.
    """

    truth: str
    step: int
    step_s: float
    real_s: float
    tokens_per_s: float
    flops_per_s: float
    bubble: float
    late_s: float
    network_late_s: float


class MetricsFile:
    """A file of JSON lines: first the description of the run, then a line a step.

    A run that is resumed goes on in the same file; lines of steps that are done again are dropped.
    `key` tells the run from any other, and is that of the file where it is resumed; `told_step` is
    the last step that the run has ever had a line of, those that were dropped included.
    """

    def __init__(
        self, path: Path, description: Mapping[str, Any], *, first_step: int, key: str = ""
    ) -> None:
        lines = _lines(path)
        rows = [json.loads(line) for line in lines]
        before = rows if first_step > 0 else []
        self.key = next((row["key"] for row in before if row.get("key")), key)
        told = (max(row.get("step", 0), row.get("told_step", 0)) for row in before)
        self.told_step = max(told, default=0)
        pairs = zip(lines, rows, strict=True)
        kept = [line for line, row in pairs if row.get("step", 0) <= first_step]
        path.parent.mkdir(parents=True, exist_ok=True)
        beginning = path.with_suffix(".tmp")
        begun = {"run": description, "key": self.key, "told_step": self.told_step}
        beginning.write_text("".join(f"{line}\n" for line in (*kept, json.dumps(begun))))
        beginning.replace(path)
        self._path = path

    def write(self, metrics: StepMetrics | PacedMetrics) -> None:
        """Append a line; it is readable at once. On a full disk, it is lost, with a warning."""
        size = self._path.stat().st_size
        try:
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(metrics)) + "\n")
        except OSError as error:
            os.truncate(self._path, size)
            logger.warning("no metrics of step %d, training goes on: %s", metrics.step, error)


def read_metrics(path: Path) -> list[StepMetrics]:
    """Return the steps of a metrics file, in order."""
    rows = [json.loads(line) for line in _lines(path)]
    return [StepMetrics(**row) for row in rows if "run" not in row]


def read_description(path: Path) -> dict[str, Any] | None:
    """Return what the last run that wrote the file says of itself, or None if none has."""
    rows = [json.loads(line) for line in _lines(path)]
    described = [row["run"] for row in rows if "run" in row]
    return described[-1] if described else None


def _lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    return [line for line in path.read_text().splitlines() if line.endswith("}")]
