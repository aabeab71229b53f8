"""The losses and bytes of a run: measured, written, read."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

from experiments.table import Row, read_csv, write_csv
from jaxpipe.comm import run_ranks
from jaxpipe.config import job_from, load_config
from jaxpipe.propose.resolve import plan_from
from jaxpipe.runtime.metrics.records import read_metrics
from jaxpipe.runtime.train import train


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step: losses in nats per token; the held-out loss is optional."""

    step: int
    loss: float
    held_out_loss: float | None
    sent_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The name and the steps of a run."""

    name: str
    steps: tuple[Step, ...]

    @property
    def held_out(self) -> tuple[tuple[int, float], ...]:
        """The steps with a held-out loss, and that loss."""
        return tuple((s.step, s.held_out_loss) for s in self.steps if s.held_out_loss is not None)

    @property
    def bytes_per_step(self) -> float:
        """Bytes that all ranks sent in a step: the median, although all steps are equal."""
        return median(s.sent_bytes for s in self.steps)

    def training_loss(self, *, last: int) -> float:
        """Return the mean training loss over the last steps."""
        return mean(s.loss for s in self.steps[-last:])


def run_case(case: Mapping[str, Any], *, config: str, settings: Sequence[str]) -> Curve:
    """Train with ranks as threads of this process; the run folder is temporary."""
    with TemporaryDirectory() as folder:
        changes = [*settings, *case.get("settings", ()), f"run.folder={folder}/run"]
        read = load_config(config, changes)
        plan = plan_from(read)
        job = job_from(read, plan)
        run_ranks(
            plan.num_ranks,
            lambda rank: train(job, rank, checkpoint=None, observe=lambda _: None),
        )
        steps = tuple(
            Step(step=m.step, loss=m.loss, held_out_loss=m.eval_loss, sent_bytes=m.sent_bytes)
            for m in read_metrics(job.metrics_file)
        )
    return Curve(name=case["name"], steps=steps)


def write_curves(curves: Iterable[Curve], path: Path) -> None:
    """Write a row per step of every run, with all digits of the losses."""
    rows: list[Row] = [
        {
            "run": curve.name,
            "step": s.step,
            "loss": repr(s.loss),
            "held_out_loss": "" if s.held_out_loss is None else repr(s.held_out_loss),
            "sent_bytes": s.sent_bytes,
        }
        for curve in curves
        for s in curve.steps
    ]
    write_csv(rows, path)


def read_curves(path: Path) -> dict[str, Curve]:
    """Return the runs of a file by name; a missing file has none."""
    steps: dict[str, list[Step]] = {}
    for row in read_csv(path) if path.exists() else ():
        held_out = row["held_out_loss"]
        steps.setdefault(row["run"], []).append(
            Step(
                step=int(row["step"]),
                loss=float(row["loss"]),
                held_out_loss=float(held_out) if held_out else None,
                sent_bytes=int(row["sent_bytes"]),
            )
        )
    return {name: Curve(name=name, steps=tuple(each)) for name, each in steps.items()}
