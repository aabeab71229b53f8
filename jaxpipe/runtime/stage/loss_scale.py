"""Dynamic loss scaling: float16 gradients do not underflow, nor overflow for more than one step.

::

    cotangent of the loss * scale ─ backwards ─ reduce ─ squared norm over all ranks
                                                                 │
                    finite: gradients / scale, update  <─────────┴─────> else: skip, scale / 2

The squared norm is all-reduced before any stage updates: all ranks have the same number, take or
skip the step together, and compute the same scale without another message. The decision is made on
the host: a skipped step is an update that is not called, and none of this is compiled.

Source: Micikevicius et al. 2018, "Mixed precision training", section 3.2.
"""

import math
from dataclasses import dataclass

from jaxpipe.runtime.stage.optimizer_config import LossScaleConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale:
    """The scale, and the number of steps since it last changed or a step overflowed."""

    scale: float
    good_steps: int = 0


def initial_loss_scale(config: LossScaleConfig) -> LossScale:
    """Return the state before the first step.

    >>> initial_loss_scale(LossScaleConfig(initial=1024.0))
    LossScale(scale=1024.0, good_steps=0)
    """
    return LossScale(scale=config.initial)


def is_finite(square_norm: float) -> bool:
    """Return whether all gradients are finite, given their squared norm; False if that overflows.

    >>> is_finite(4.0), is_finite(float("inf")), is_finite(float("nan"))
    (True, False, False)
    """
    return math.isfinite(square_norm)


def unscaled_square_norm(square_norm: float, *, scale: float) -> float:
    """Return the squared norm of the gradients divided by the scale.

    >>> unscaled_square_norm(128.0, scale=8.0)
    2.0
    """
    return square_norm / scale / scale


def adjust(config: LossScaleConfig, state: LossScale, *, finite: bool) -> LossScale:
    """Return the scale after a step: lower if it overflowed, higher after `growth_steps` good ones.

    >>> config = LossScaleConfig(initial=8.0, growth_steps=1)
    >>> state = initial_loss_scale(config)
    >>> [adjust(config, state, finite=finite).scale for finite in (True, False)]
    [16.0, 4.0]
    """
    if not finite:
        # Below 1, scaling would cause the underflow that it should prevent.
        return LossScale(scale=max(state.scale / config.factor, 1.0))
    good_steps = state.good_steps + 1
    if good_steps < config.growth_steps:
        return LossScale(scale=state.scale, good_steps=good_steps)
    return LossScale(scale=min(state.scale * config.factor, config.largest))
