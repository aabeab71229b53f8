"""The cluster of a configuration, and whether a plan is one for it."""

from jaxpipe import topo
from jaxpipe.config.check_mesh import check_mesh_fits
from jaxpipe.config.check_outer import check_outer
from jaxpipe.config.compatibility import check_compatible
from jaxpipe.config.read import Config
from jaxpipe.errors import ConfigError, PlanError
from jaxpipe.plan import Plan
from jaxpipe.topo import Cluster


def cluster_from(config: Config) -> Cluster:
    """Return the configured cluster.

    Raises:
        ConfigError: there is no such cluster.
    """
    try:
        return topo.load(config.plan.cluster)
    except ValueError as error:
        raise ConfigError(f"`plan.cluster`: {error}") from error


def check_settings(config: Config) -> None:
    """Check what no plan would mend: it comes before a search.

    Raises:
        ConfigError: the sequence is longer than the model's, or not that of its pictures, or two
            settings exclude each other.
    """
    sequence = config.train.sequence or config.model.sequence
    if sequence > config.model.sequence:
        raise ConfigError(
            f"`train.sequence` ({sequence}) must be at most `model.sequence` "
            f"({config.model.sequence}), the positions of the model; lower the first or raise the "
            "second"
        )
    if config.model.picture is not None and sequence != config.model.sequence:
        raise ConfigError(
            f"`train.sequence` ({sequence}) must be `model.sequence` ({config.model.sequence}) "
            "where inputs are pictures (`model.patch`); leave it out"
        )
    check_compatible(config)


def check_plan_fits(config: Config, plan: Plan, *, source: str = "the plan") -> None:
    """Check that a plan is one for this configuration; errors name its `source`.

    Raises:
        ConfigError: two settings exclude each other, or the mesh or the outer loop does not fit.
        PlanError: the plan is for another model or batch, or has no such islands.
    """
    check_settings(config)
    _check_same_model(config, plan, source=source)
    check_compatible(config, plan)
    check_mesh_fits(config, plan)
    check_outer(config, plan)


def _check_same_model(config: Config, plan: Plan, *, source: str) -> None:
    planned = {
        "model.num_layers": (plan.num_layers, config.model.num_layers),
        "model.tied": (plan.tied, config.model.tied),
        "train.batch": (plan.batch, config.train.batch),
    }
    for field, (in_plan, wanted) in planned.items():
        if in_plan != wanted:
            raise PlanError(
                f"`{field}` ({wanted}) must be as in {source}, which was planned for {in_plan}; "
                "set it to that, or plan again"
            )
