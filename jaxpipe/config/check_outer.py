"""Checks of an outer loop: its plan, and the checkpoint that it resumes from."""

from jaxpipe.config.read import Config
from jaxpipe.errors import CheckpointError, ConfigError
from jaxpipe.outer import check_fragments, saved_outer
from jaxpipe.plan import Plan, check_islands
from jaxpipe.runtime.checkpoint import Checkpoint

_KEPT = ("every", "fragments", "delay", "eager", "codec", "top_k_fraction")
"""Fields that islands keep when they resume: what is under way depends on them."""


def check_outer(config: Config, plan: Plan) -> None:
    """Check that a plan has the configured islands, and a run whole outer steps.

    Raises:
        ConfigError: the last inner step is not the end of an outer step, or there are more
            fragments than layers.
        PlanError: the plan has no such islands.
    """
    outer = config.outer
    if not outer.is_on:
        return
    if config.train.steps % outer.every:
        raise ConfigError(
            f"`train.steps` ({config.train.steps}) must be a multiple of `outer.every` "
            f"({outer.every}): a run ends with an outer step"
        )
    check_fragments(outer.fragments, num_layers=config.model.num_layers)
    check_islands(plan, num_islands=outer.islands)


def check_same_outer(config: Config, checkpoint: Checkpoint) -> None:
    """Check that a run whose islands continue has the outer loop of its checkpoint.

    Other islands, or none, start from those that have met: nothing is under way there.

    Raises:
        CheckpointError: the outer loops differ in more than learning rate, momentum and mixing.
    """
    saved = saved_outer(checkpoint.metadata)
    if saved.islands != config.outer.islands:
        return
    for field in _KEPT:
        old, new = getattr(saved, field), getattr(config.outer, field)
        if old != new:
            raise CheckpointError(
                f"`outer.{field}` ({new}) must be as in the checkpoint {checkpoint.folder}, {old}: "
                "a run continues with its own outer loop; set it to that"
            )
