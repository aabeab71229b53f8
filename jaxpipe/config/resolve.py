"""Resolve a configuration to its cluster and plan: once for a run, before its ranks start."""

from dataclasses import replace
from pathlib import Path

from jaxpipe import topo
from jaxpipe.collective import AllReduceKind, CodecKind
from jaxpipe.config.read import Config
from jaxpipe.errors import ConfigError, PlanError
from jaxpipe.models import num_parameters
from jaxpipe.plan import Plan, default_plan, read_plan
from jaxpipe.simulate import fastest_all_reduce
from jaxpipe.topo import Cluster

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


def plan_from(config: Config, cluster: Cluster | None = None) -> Plan:
    """Return the plan for a cluster, the configured one by default.

    It is the one in `plan.file`, or else the default plan of the section `plan`.

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
        plan = replace(plan, all_reduce=_all_reduce(config, plan, cluster))
    check_plan_fits(config, plan)
    return plan


def check_plan_fits(config: Config, plan: Plan, *, source: str = "the plan") -> None:
    """Check that a plan is one for this configuration; errors name its `source`.

    Raises:
        ConfigError: the plan does not use the codec of gradients, or the mesh does not divide heads
            and microbatch, or the optimizer is sharded twice.
        PlanError: the plan is for another model or batch.
    """
    _check_same_model(config, plan, source=source)
    for microbatch in {pipeline.microbatch for pipeline in plan.pipelines}:
        _check_mesh_fits(config, microbatch=microbatch)
    _check_codec(config, plan)
    _check_sharding(config, plan)


def _all_reduce(config: Config, plan: Plan, cluster: Cluster) -> AllReduceKind:
    """Return the all-reduce of gradients that is fastest over the cluster's links, simulated."""
    if config.comm.gradients is not CodecKind.NONE:
        # The only one with far messages, which a codec compresses.
        return AllReduceKind.HIERARCHICAL
    # A tied head counts with the embedding: the copy of the last stage has a bucket of its own.
    model, last = config.model, 0 if config.model.tied else len(plan.segments) - 1
    segment_bytes = [
        _GRADIENT_BYTES * num_parameters(model, layers=n, embed=number == 0, head=number == last)
        for number, n in enumerate(plan.segments)
    ]
    embed_bytes = _GRADIENT_BYTES * model.vocabulary * model.dim
    kind, _ = fastest_all_reduce(
        plan, cluster, segment_bytes=segment_bytes, embed_bytes=embed_bytes
    )
    return kind


def _check_mesh_fits(config: Config, *, microbatch: int) -> None:
    divides = {
        "mesh.tensor": (config.mesh.tensor, "model.num_heads", config.model.num_heads),
        "mesh.data": (config.mesh.data, "plan.microbatch", microbatch),
    }
    for field, (parts, whole_field, whole) in divides.items():
        if whole % parts:
            choices = ", ".join(str(n) for n in range(1, whole + 1) if whole % n == 0)
            raise ConfigError(
                f"the devices of a rank have equal parts: `{field}` is {parts}, which does not "
                f"divide `{whole_field}`, {whole}; choose from {choices}"
            )


def _check_codec(config: Config, plan: Plan) -> None:
    codec, kind = config.comm.gradients, plan.all_reduce
    if codec is not CodecKind.NONE and kind is not AllReduceKind.HIERARCHICAL:
        raise ConfigError(
            f"only a hierarchical all-reduce compresses gradients: `comm.gradients` is "
            f"{codec}, `plan.all_reduce` is {kind}; set "
            f"`plan.all_reduce` to {AllReduceKind.HIERARCHICAL}, or `comm.gradients` to "
            f"{CodecKind.NONE}"
        )


def _check_sharding(config: Config, plan: Plan) -> None:
    if config.optimizer.sharded and not plan.has_equal_cuts:
        raise ConfigError(
            "replicas shard the optimizer of a stage that all of them have: `optimizer.sharded` is "
            "true, and the replicas of the plan have different partitions; set it to false"
        )
    num_devices = config.mesh.num_devices
    if config.optimizer.sharded and num_devices > 1:
        raise ConfigError(
            f"moments are sharded over replicas or over the devices of a rank, not both: "
            f"`optimizer.sharded` is true, and `mesh.data` x `mesh.tensor` is {num_devices}; "
            f"remove one of them"
        )


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
