"""The report that rank 0 prints: a line per step, then the results and their files."""

import logging
import time
from collections.abc import Callable, Sequence
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
from jaxpipe.runtime.metrics.records import StepMetrics, read_metrics, read_truth
from jaxpipe.runtime.storage.object_folder import Folder
from jaxpipe.runtime.train import Outcome

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
            f"{metrics.tokens_per_s:>7,.0f} tokens/s   {metrics.flops_per_s / 1e9:.1f} GFLOP/s   "
            f"bubble {metrics.bubble:.1%} (theory {self._ideal_bubble:.1%})   "
            f"{left} left{_scaling(metrics)}{held_out}"
        )


def _scaling(metrics: StepMetrics) -> str:
    if metrics.loss_scale is None:
        return ""
    return f"   loss scale {metrics.loss_scale:,.0f}, {metrics.skipped_steps} skipped"


def report_end(console: Console, config: Config, plan: Plan, outcome: Outcome) -> None:
    """Print a summary of the run, sampled text, the files, and the next command."""
    metrics = read_metrics(outcome.metrics)
    evals = [m.eval_loss for m in metrics if m.eval_loss is not None]
    speed = median(m.tokens_per_s for m in metrics)
    bubble = median(m.bubble for m in metrics)
    truth = read_truth(outcome.metrics)
    target = "sample" if config.model.classes else "token"
    lines = (
        f"training loss {metrics[0].loss:.3f} -> {metrics[-1].loss:.3f}",
        f"held-out loss {evals[0]:.3f} -> {evals[-1]:.3f}, in nats per {target}",
        f"{speed:,.0f} tokens/s, median of {len(metrics)} steps ({truth})",
        f"bubble {bubble:.1%}, median ({truth}); {theory_of(config, plan):.1%} in theory",
    )
    console.print("\n" + "\n".join(lines) + "\n", markup=False)
    if not isfinite(metrics[-1].loss):  # a run of a few steps ends before the third in a row
        logger.warning(
            "the last loss is %s, so the model is of no use: lower `optimizer.learning_rate` or "
            "check the data",
            metrics[-1].loss,
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
        "losses": _drawn(metrics, curve, truth=truth) if config.run.pictures else None,
    }
    for name, path in files.items():
        console.print(f"{name:<12}{path or 'none'}", markup=False)
    console.print(f"\n{_following(config)}", markup=False)


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


def _drawn(metrics: Sequence[StepMetrics], path: Path, *, truth: str) -> Path | None:
    """Draw the losses of a run, and return the picture if that worked."""
    curve = LossCurve(
        name="training",
        losses=[(each.step, each.loss) for each in metrics],
        held_out=[(each.step, each.eval_loss) for each in metrics if each.eval_loss is not None],
    )
    with optional_output("the picture of the losses", path):
        draw_losses([curve], path, title=f"loss of {path.parent.name} · {truth}")
        return path
    return None
