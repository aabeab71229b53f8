"""The report that rank 0 prints: a line per step, then the results and their files."""

import logging
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from pathlib import Path
from statistics import median

from rich.console import Console

from jaxpipe.config import Config
from jaxpipe.errors import optional_output
from jaxpipe.inference.sample_texts import sample_text
from jaxpipe.pictures.loss_picture import LossCurve, draw_losses
from jaxpipe.plan import Plan, ideal_bubble
from jaxpipe.propose.conditions import counted_profile
from jaxpipe.run.folder.prepare_run import PLAN_FILE
from jaxpipe.run.terminal.console import next_line
from jaxpipe.run.terminal.progress import Pace, Progress, duration
from jaxpipe.runtime.config import SampleConfig, TrainConfig
from jaxpipe.runtime.metrics.records import (
    MetricsSummary,
    StepMetrics,
    read_summary,
    stream_metrics,
)
from jaxpipe.runtime.storage.object_folder import Folder
from jaxpipe.runtime.train import Outcome
from jaxpipe.topo.units import flops_text

logger = logging.getLogger(__name__)

LOSS_PICTURE = "losses.png"
"""The picture of a run's losses, in its folder."""


class StepReport:
    """Callback that prints a line every `log_every` steps and for every evaluation.

    It calls `say` with every step; `theory` is the bubble of the plan on paper.
    """

    def __init__(
        self,
        console: Console,
        train: TrainConfig,
        theory: float,
        *,
        say: Callable[[Progress], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._train = train
        self._ideal_bubble = theory
        self._say, self._clock = say, clock
        self._pace = Pace()

    def __call__(self, metrics: StepMetrics) -> None:
        """Say how far the run is, and print a step if it is due."""
        step, steps = metrics.step, self._train.steps
        # Log lines have the same figures; only a progress line shows every step.
        self._say(Progress(what="training", done=step, total=steps, unit="step", is_logged=True))
        self._pace.update(step, at_s=self._clock())
        if metrics.step % self._train.log_every and metrics.eval_loss is None:
            return
        # Wall time contains held-out losses and saves; after one step there is no interval.
        left_s = self._pace.left_s(steps)
        left = duration((steps - step) * metrics.step_s if left_s is None else left_s)
        held_out = "" if metrics.eval_loss is None else f"   held out {metrics.eval_loss:.3f}"
        self._console.print(
            f"step {step:>5}/{steps}   loss {metrics.loss:.3f}   "
            f"{metrics.tokens_per_s:>7,.0f} tokens/s   {flops_text(metrics.flops_per_s)}   "
            f"bubble {metrics.bubble:.1%} (theory {self._ideal_bubble:.1%})   "
            f"{left} left{_scaling(metrics)}{held_out}"
        )


def _scaling(metrics: StepMetrics) -> str:
    if metrics.loss_scale is None:
        return ""
    return f"   loss scale {metrics.loss_scale:,.0f}, {metrics.skipped_steps} skipped"


def report_end(console: Console, config: Config, plan: Plan, outcome: Outcome) -> None:
    """Print a summary of the run, sampled text, the files, and the next command."""
    metrics = read_summary(outcome.metrics)
    lines = _figures(config, plan, metrics, outcome.metrics)
    console.print("\n" + "\n".join(lines) + "\n", markup=False)
    _, last_loss = metrics.losses[-1] if metrics.losses else (0, 0.0)
    if not isfinite(last_loss):  # a run of a few steps ends before the third in a row
        logger.warning(
            "the last loss is %s, so the model is of no use: lower `optimizer.learning_rate` or "
            "check the data",
            last_loss,
        )
    if config.sample.tokens:
        with optional_output("the sample"):
            _print_sample(console, config.sample, outcome.checkpoint)
    curve = Path(config.run.folder) / LOSS_PICTURE
    files: dict[str, Folder | None] = {
        "plan": Path(config.run.folder) / PLAN_FILE,
        "checkpoint": outcome.checkpoint,
        "metrics": outcome.metrics,
        "trace": outcome.trace,
        "picture": outcome.picture,
        "losses": _drawn(metrics, curve) if config.run.pictures else None,
    }
    for name, path in files.items():
        console.print(f"{name:<12}{path or 'none'}", markup=False)
    console.print(f"\n{_following(config)}", markup=False)


def _figures(config: Config, plan: Plan, metrics: MetricsSummary, file: Path) -> Iterator[str]:
    """Yield the lines with the figures of a run; damaged lines of its file are left out."""
    # Of all steps, as numbers alone: a run may have millions.
    speeds, bubbles = array("d"), array("d")
    for step in stream_metrics(file, level=logging.DEBUG):
        speeds.append(step.tokens_per_s)
        bubbles.append(step.bubble)
    if metrics.losses:
        yield f"training loss {_change(metrics.losses)}"
    if metrics.held_out:
        target = "sample" if config.model.classes else "token"
        yield f"held-out loss {_change(metrics.held_out)}, in nats per {target}"
    if speeds:
        truth = metrics.truth
        yield f"{median(speeds):,.0f} tokens/s, median of {len(speeds)} steps ({truth})"
        theory = f"{theory_of(config, plan):.1%} in theory"
        yield f"bubble {median(bubbles):.1%}, median ({truth}); {theory}"


def _change(losses: Sequence[tuple[int, float]]) -> str:
    return f"{losses[0][1]:.3f} -> {losses[-1][1]:.3f}"


def _print_sample(console: Console, sample: SampleConfig, checkpoint: Folder) -> None:
    text = sample_text(
        checkpoint, sample.prompt, tokens=sample.tokens, temperature=sample.temperature
    )
    console.print(f"sample of the trained model:\n\n{text}\n", markup=False)


def theory_of(config: Config, plan: Plan) -> float:
    """Return the bubble of a plan on paper: stages by counted FLOPs, instant messages."""
    return ideal_bubble(plan, counted_profile(config, plan.remat))


def _following(config: Config) -> str:
    """Return the next command: a model of labels generates no text."""
    folder = config.run.folder
    if config.model.classes:
        return next_line("runs", str(Path(folder).parent))
    return next_line("generate", folder, "--prompt", config.sample.prompt)


def _drawn(metrics: MetricsSummary, path: Path) -> Path | None:
    """Draw the losses of a run, and return the picture if that worked."""
    curve = LossCurve(name="training", losses=metrics.losses, held_out=metrics.held_out)
    with optional_output("the picture of the losses", path):
        draw_losses([curve], path, title=f"loss of {path.parent.name} · {metrics.truth}")
        return path
    return None
