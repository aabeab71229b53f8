"""Train once with some settings, and keep the losses and the bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

from jaxpipe.comm import run_ranks
from jaxpipe.config import job_from, load_config, plan_from
from jaxpipe.runtime.metrics import StepMetrics, read_metrics
from jaxpipe.runtime.train import train


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One run: its name, and what was measured in each step."""

    name: str
    steps: tuple[StepMetrics, ...]

    @property
    def held_out(self) -> tuple[tuple[int, float], ...]:
        """The steps at which the held-out loss was measured, and that loss in nats per token."""
        return tuple((m.step, m.eval_loss) for m in self.steps if m.eval_loss is not None)

    @property
    def bytes_per_step(self) -> float:
        """What all ranks sent in a step: the median, though all are equal."""
        return median(m.sent_bytes for m in self.steps)

    def training_loss(self, *, last: int) -> float:
        """Return the mean of the training loss over the last steps, in nats per token."""
        return mean(m.loss for m in self.steps[-last:])


def run_case(case: Mapping[str, Any], *, config: str, settings: Sequence[str]) -> Curve:
    """Train as all ranks, in threads of this process; files go to a folder that is thrown away."""
    with TemporaryDirectory() as folder:
        read = load_config(
            config, [*settings, *case.get("settings", ()), f"run.folder={folder}/run"]
        )
        plan = plan_from(read)
        job = job_from(read, plan)
        run_ranks(
            plan.num_ranks,
            lambda rank: train(job, rank, checkpoint=None, observe=lambda _: None),
        )
        return Curve(
            name=case["name"], steps=tuple(read_metrics(Path(folder) / "run/metrics.jsonl"))
        )
