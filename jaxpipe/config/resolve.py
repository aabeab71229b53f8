"""Resolve a configuration to its cluster and plan: once for a run, before its ranks start."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpipe import topo
from jaxpipe.collective import AllReduceKind, CodecKind
from jaxpipe.config.check_mesh import check_mesh_fits
from jaxpipe.config.check_outer import check_outer
from jaxpipe.config.compatibility import check_compatible
from jaxpipe.config.read import Config
from jaxpipe.config.tuning import is_tuned, tuned_model_from
from jaxpipe.errors import ConfigError, PlanError
from jaxpipe.models import num_parameters
from jaxpipe.plan import Plan, default_plan, read_plan
from jaxpipe.simulate import fastest_all_reduce
from jaxpipe.topo import Cluster

if TYPE_CHECKING:  # it imports jax
    from jaxpipe.runtime.stage.model import Model

_GRADIENT_BYTES = 4


def cluster_from(config: Config) -> Cluster:
    """Return the configured cluster.

    Raises:
        ConfigError: there is no such cluster.
    """
    try:
        return topo.load(config.plan.cluster)
    except ValueError as error:
        raise ConfigError(f"`plan.cluster`: {error}") from error


def plan_from(
    config: Config, cluster: Cluster | None = None, *, model: "Model | None" = None
) -> Plan:
    """Return the plan for a cluster, the configured one by default.

    It is the one in `plan.file`, or else the default plan of the section `plan`. `model` is the one
    to train or to tune, by default the configured one.

    Raises:
        ConfigError: there is no such cluster, or the configuration is for another kind of plan.
        PlanError: cluster, model and batch do not fit the stages and replicas, or the file.
    """
    cluster = cluster_from(config) if cluster is None else cluster
    if config.plan.file is not None:
        plan = read_plan(Path(config.plan.file), cluster)
        check_plan_fits(config, plan, source=config.plan.file)
        return plan
    plan = default_plan(
        config.plan,
        cluster,
        num_layers=config.model.num_layers,
        batch=config.train.batch,
        tied=config.model.tied,
    )
    if config.plan.all_reduce is None:
        plan = replace(plan, all_reduce=_all_reduce(config, plan, cluster, model))
    check_plan_fits(config, plan)
    return plan


def check_plan_fits(config: Config, plan: Plan, *, source: str = "the plan") -> None:
    """Check that a plan is one for this configuration; errors name its `source`.

    Raises:
        ConfigError: two settings exclude each other, or the mesh or the outer loop does not fit.
        PlanError: the plan is for another model or batch, or has no such islands.
    """
    _check_same_model(config, plan, source=source)
    check_compatible(config, plan)
    check_mesh_fits(config, plan)
    check_outer(config, plan)


def _all_reduce(
    config: Config, plan: Plan, cluster: Cluster, model: "Model | None"
) -> AllReduceKind:
    """Return the all-reduce of gradients that is fastest over the cluster's links, simulated."""
    if config.comm.gradients is not CodecKind.NONE:
        # The only one with far messages, which a codec compresses.
        return AllReduceKind.HIERARCHICAL
    segment_bytes, embed_bytes = _gradient_bytes(config, plan, model)
    kind, _ = fastest_all_reduce(
        plan, cluster, segment_bytes=segment_bytes, embed_bytes=embed_bytes
    )
    return kind


def _gradient_bytes(config: Config, plan: Plan, own: "Model | None") -> tuple[list[int], int]:
    """Return the bytes of the gradients of each segment, and of a tied embedding."""
    # A tied head counts with the embedding: the copy of the last stage has a bucket of its own.
    model, last = config.model, 0 if config.model.tied else len(plan.segments) - 1
    of_stage, tokens = partial(num_parameters, model), model.vocabulary * model.dim
    if is_tuned(config):
        from jaxpipe.finetune.trained_parameters import trained_parameters

        counts = trained_parameters(tuned_model_from(config, own))
        of_stage, tokens = partial(counts.of_stage, tied=model.tied), counts.tokens
    segment_bytes = [
        _GRADIENT_BYTES * of_stage(layers=n, embed=number == 0, head=number == last)
        for number, n in enumerate(plan.segments)
    ]
    return segment_bytes, _GRADIENT_BYTES * tokens


def _check_same_model(config: Config, plan: Plan, *, source: str) -> None:
    planned = {
        "model.num_layers": (plan.num_layers, config.model.num_layers),
        "model.tied": (plan.tied, config.model.tied),
        "train.batch": (plan.batch, config.train.batch),
    }
    for field, (in_plan, wanted) in planned.items():
        if in_plan != wanted:
            raise PlanError(
                f"a plan is for one model and batch: {source} was made for `{field}` {in_plan}, "
                f"the configuration says {wanted}; set it to that, or plan again"
            )
