"""The result of a training step, and the metrics that it is reported as."""

from dataclasses import dataclass

from jaxpipe.runtime.job import Job
from jaxpipe.runtime.metrics.records import StepMetrics
from jaxpipe.runtime.stage.optimizer import rate_after
from jaxpipe.runtime.step.step_totals import StepTotals
from jaxpipe.trace import LinkReport


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd:
    """A step that has ended, the same on all ranks of an island; `step` counts from 1.

    `loss_scale` and `skipped_before` are those with which the step began. `outer_bytes` is None
    unless an outer step ended. The work between two steps (held-out loss, report, checkpoint)
    depends only on this and on the state, so a rank that was interrupted during it can repeat it.
    """

    step: int
    totals: StepTotals
    step_s: float
    loss_scale: float | None
    skipped_before: int
    skipped_after: int
    outer_bytes: int | None = None

    @property
    def is_stopped(self) -> bool:
        """Whether a rank has been asked to stop."""
        return self.totals.stops > 0

    def metrics(
        self,
        job: Job,
        *,
        eval_loss: float | None,
        links: LinkReport | None = None,
    ) -> StepMetrics:
        """Return the metrics."""
        tokens_per_s = job.tokens_per_step / self.step_s
        is_taken = self.skipped_after == self.skipped_before
        # A skipped step updates nothing, so the schedule of the learning rate does not advance.
        num_updates = self.step - 1 - self.skipped_before
        return StepMetrics(
            step=self.step,
            loss=self.totals.mean_loss,
            eval_loss=eval_loss,
            grad_norm=self.totals.square_norm**0.5 if is_taken else None,
            learning_rate=rate_after(num_updates, job.optimizer, num_steps=job.train.steps),
            step_s=self.step_s,
            tokens_per_s=tokens_per_s,
            bubble=self.totals.bubble,
            sent_bytes=int(self.totals.sent_bytes),
            flops_per_s=job.flops_per_token * tokens_per_s,
            loss_scale=self.loss_scale,
            skipped_steps=self.skipped_after,
            outer_bytes=self.outer_bytes,
            links=links,
        )
