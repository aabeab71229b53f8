"""Checks of an outer loop: its plan, what it excludes, and the checkpoint that it resumes from."""

from jaxpipe.config.read import Config
from jaxpipe.errors import CheckpointError, ConfigError
from jaxpipe.outer import check_fragments, saved_outer
from jaxpipe.plan import Plan, check_islands
from jaxpipe.runtime.checkpoint import Checkpoint
from jaxpipe.runtime.config import Survival, TransportKind

_KEPT = ("every", "fragments", "delay", "eager", "codec", "top_k_fraction")
"""Fields that islands keep when they resume: what is under way depends on them."""


def check_outer(config: Config, plan: Plan) -> None:
    """Check that a plan has the configured islands, and that nothing excludes an outer loop.

    Raises:
        ConfigError: the last inner step is not the end of an outer step, there are more fragments
            than layers, or a setting is not supported with an outer loop.
        PlanError: the plan has no such islands.
    """
    outer, run = config.outer, config.run
    if not outer.is_on:
        return
    if config.train.steps % outer.every:
        raise ConfigError(
            f"a run ends with an outer step: `outer.every` is {outer.every}, which does not divide "
            f"`train.steps`, {config.train.steps}; change one of them"
        )
    check_fragments(outer.fragments, num_layers=config.model.num_layers)
    check_islands(plan, num_islands=outer.islands)
    dtype = config.model.param_dtype
    excluded = {
        "model.param_dtype": (dtype, dtype != "float32", "float32"),
        "run.survive": (run.survive, run.survive is Survival.SHRINK, Survival.RESTART),
        "run.transport": (run.transport, run.transport is TransportKind.NCCL, TransportKind.MPI),
    }
    for field, (value, is_excluded, fix) in excluded.items():
        if is_excluded:
            raise ConfigError(
                f"an outer loop does not support this: `{field}` is {value}, and "
                f"`outer.islands` {outer.islands}; set the first to {fix}, or the second to 0"
            )


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
                f"a run continues with its own outer loop: `outer.{field}` is {new}, the "
                f"checkpoint {checkpoint.folder} has {old}; set it to that"
            )
