"""What a configuration does that its user may not expect: lines for people, no refusals."""

from collections.abc import Iterator
from math import log2

from jaxpipe.config.read import Config
from jaxpipe.config.unused_settings import unused_settings
from jaxpipe.runtime.run_config import ComputeKind
from jaxpipe.runtime.stage.optimizer_config import OptimizerName

_LOST_BELOW = {"bfloat16": 2.0**-9, "float16": 2.0**-12}
"""Half an ulp of the largest number below a power of two, relative to it: what is less is lost."""
_MOVE_BY_RATE = (OptimizerName.ADAMW, OptimizerName.LION, OptimizerName.MUON)
"""The optimizers whose update of a parameter is at most about the learning rate."""


def notices_of(config: Config, *, over_hosts: bool = False) -> Iterator[str]:
    """Yield a line for everything that a configuration does unexpectedly.

    `over_hosts` says whether it is `jaxpipe run --hosts` that starts the ranks.

    >>> from jaxpipe.config.read import config_of_settings
    >>> few = config_of_settings(["model.preset=tiny", "train.steps=5"])
    >>> list(notices_of(few))  # doctest: +ELLIPSIS
    ['`optimizer.warmup_steps` (20) is more than `train.steps` (5): the learning rate ends at 25%...
    """
    if config.run.compute is ComputeKind.PACED:
        return
    yield from unused_settings(config, over_hosts=over_hosts)
    yield from _of_warmup(config)
    yield from _of_rounding(config)


def _of_warmup(config: Config) -> Iterator[str]:
    warmup, steps = config.optimizer.warmup_steps, config.train.steps
    if warmup > steps:
        yield (
            f"`optimizer.warmup_steps` ({warmup}) is more than `train.steps` ({steps}): the "
            f"learning rate ends at {steps / warmup:.0%} of its peak"
        )


def _of_rounding(config: Config) -> Iterator[str]:
    dtype, optimizer = config.model.param_dtype, config.optimizer
    if optimizer.has_master_weights(dtype):
        return
    limit = _LOST_BELOW.get(dtype, 0.0)
    if optimizer.name in _MOVE_BY_RATE and optimizer.learning_rate < limit:
        yield (
            f"`model.param_dtype` ({dtype}) rounds updates below 2^{log2(limit):.0f} of a "
            f"parameter away: with `optimizer.learning_rate` {optimizer.learning_rate:g}, those "
            f"above {optimizer.learning_rate / limit:.2g} stay as they are, such as the scales of "
            "norms; `optimizer.master_weights` keeps them"
        )
