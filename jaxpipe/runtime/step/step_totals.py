"""The scalars that all ranks sum once a step: loss, gradient norm and measurements."""

from dataclasses import astuple, dataclass, replace

import numpy as np

from jaxpipe.runtime.stage.loss_scale import unscaled_square_norm
from jaxpipe.trace import bubble_fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTotals:
    """Sums over all ranks; each contributes its own part, and 0 to the rest.

    `loss` is in nats, summed over `targets`, the number of those that count. `square_norm` is that
    of the gradient before clipping, times the square of the loss scale unless it is `unscaled`.
    `pipeline_s` are the seconds of the pipeline phase of each rank's replica, known once the phases
    of all ranks are; `compute_s` those of all forwards and backwards. `sent_bytes` were sent before
    this all-reduce, gradients included.
    `stops` counts the ranks that were asked to stop.
    """

    loss: float = 0.0
    targets: float = 0.0
    square_norm: float = 0.0
    compute_s: float = 0.0
    pipeline_s: float = 0.0
    sent_bytes: float = 0.0
    stops: float = 0.0

    def to_array(self) -> np.ndarray:
        """Return the fields as float64."""
        return np.array(astuple(self), np.float64)

    @classmethod
    def from_array(cls, array: np.ndarray) -> "StepTotals":
        """Return the totals of an array from `to_array`, or of a sum of such arrays."""
        return cls(**dict(zip(cls.__slots__, map(float, array), strict=True)))

    def unscaled(self, scale: float | None) -> "StepTotals":
        """Return the totals without the scale of the loss; None if it is not scaled."""
        if scale is None:
            return self
        return replace(self, square_norm=unscaled_square_norm(self.square_norm, scale=scale))

    @property
    def mean_loss(self) -> float:
        """The loss in nats per target; 0 where none counts."""
        return self.loss / max(self.targets, 1.0)

    @property
    def bubble(self) -> float:
        """The fraction of the pipeline phase in which ranks did not compute."""
        return bubble_fraction(compute_s=self.compute_s, pipeline_s=self.pipeline_s)
