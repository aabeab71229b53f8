"""From a configuration to what the runtime takes: the cluster, the plan, the job of all ranks."""

import os
import platform
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import topo
from jaxpipe.collective import AllReduceKind, CodecKind
from jaxpipe.config.read import Config, config_from, to_tree
from jaxpipe.errors import ConfigError, PlanError
from jaxpipe.plan import Plan, default_plan, read_plan
from jaxpipe.runtime.checkpoint import Checkpoint
from jaxpipe.runtime.data import Tokenizer, open_dataset
from jaxpipe.simulate import fastest_all_reduce
from models import num_parameters, train_flops_per_token
from topo import Cluster

if TYPE_CHECKING:  # these import jax
    from jaxpipe.runtime.job import Job
    from jaxpipe.runtime.stage.model import Model, Parameters

_GRADIENT_BYTES = 4
_PACKAGES = ("jaxpipe", "jax", "jaxlib", "flax", "optax", "numpy", "mpi4py")


def cluster_from(config: Config) -> Cluster:
    """Return the configured cluster.

    Raises:
        ConfigError: there is no such cluster.
    """
    try:
        return topo.load(config.plan.cluster)
    except ValueError as error:
        raise ConfigError(f"`plan.cluster`: {error}") from error


def plan_from(config: Config) -> Plan:
    """Return the plan for the configured cluster: the one in `plan.file`, or the identity.

    Raises:
        ConfigError: there is no such cluster, the plan has no use for the codec of gradients, or
            the mesh does not divide heads and microbatch, or meets a sharded optimizer.
        PlanError: cluster, model and batch do not fit the stages and replicas, or the file.
    """
    plan = _plan(config)
    _check_codec(config, plan)
    _check_sharding(config)
    return plan


def _plan(config: Config) -> Plan:
    cluster = cluster_from(config)
    if config.plan.file is not None:
        plan = read_plan(Path(config.plan.file), cluster)
        _check_plan_fits(plan, config)
    else:
        plan = default_plan(
            config.plan,
            cluster,
            num_layers=config.model.num_layers,
            batch=config.train.batch,
            tied=config.model.tied,
        )
        if config.plan.all_reduce is None:
            plan = replace(plan, all_reduce=_all_reduce(config, plan, cluster))
    _check_mesh_fits(config, microbatch=plan.microbatch)
    return plan


def _all_reduce(config: Config, plan: Plan, cluster: Cluster) -> AllReduceKind:
    """Return the fastest way to sum gradients over the cluster's links, if that is theirs alone."""
    if config.comm.gradients is not CodecKind.NONE:
        return AllReduceKind.HIERARCHICAL
    model, last = config.model, 0 if config.model.tied else plan.num_stages - 1
    stage_bytes = [
        _GRADIENT_BYTES * num_parameters(model, layers=n, embed=stage == 0, head=stage == last)
        for stage, n in enumerate(plan.cut)
    ]
    embed_bytes = _GRADIENT_BYTES * model.vocabulary * model.dim
    kind, _ = fastest_all_reduce(plan, cluster, stage_bytes=stage_bytes, embed_bytes=embed_bytes)
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
                f"the devices of a rank take equal parts: `{field}` is {parts}, which does not "
                f"divide `{whole_field}`, {whole}; choose from {choices}"
            )


def _check_codec(config: Config, plan: Plan) -> None:
    codec, kind = config.comm.gradients, plan.all_reduce
    if codec is not CodecKind.NONE and kind is not AllReduceKind.HIERARCHICAL:
        raise ConfigError(
            f"gradients are encoded between the members of the whole sync tree, in a hierarchical "
            f"all-reduce: `comm.gradients` is {codec}, `plan.all_reduce` is {kind}; set "
            f"`plan.all_reduce` to {AllReduceKind.HIERARCHICAL}, or `comm.gradients` to "
            f"{CodecKind.NONE}"
        )


def _check_sharding(config: Config) -> None:
    num_devices = config.mesh.num_devices
    if config.optimizer.sharded and num_devices > 1:
        raise ConfigError(
            f"moments are shared out among replicas or among the devices of a rank, not both: "
            f"`optimizer.sharded` is true, and `mesh.data` x `mesh.tensor` is {num_devices}; leave "
            f"out one of them"
        )


def _check_plan_fits(plan: Plan, config: Config) -> None:
    batch = plan.num_replicas * plan.num_microbatches * plan.microbatch
    planned = {
        "model.num_layers": (sum(plan.cut), config.model.num_layers),
        "model.tied": (plan.tied, config.model.tied),
        "train.batch": (batch, config.train.batch),
    }
    for field, (in_plan, wanted) in planned.items():
        if in_plan != wanted:
            raise PlanError(
                f"a plan is for one model and batch: {config.plan.file} was made for `{field}` "
                f"{in_plan}, the configuration says {wanted}; set it to that, or plan anew"
            )


def scales_loss(config: Config) -> bool:
    """Return whether the loss is scaled: as told, or else where activations are float16."""
    enabled = config.loss_scale.enabled
    return config.model.compute_dtype == "float16" if enabled is None else enabled


def job_from(config: Config, plan: Plan) -> "Job":
    """Return what all ranks of a run know before they start. Imports jax.

    Raises:
        DataError: the dataset cannot be opened.
    """
    from jaxpipe.runtime.job import Job
    from models.gpt import Gpt

    sequence = config.train.sequence or config.model.sequence
    cluster = cluster_from(config)
    return Job(
        model=Gpt(config.model),
        plan=plan,
        dataset=open_dataset(Path(config.data.folder), verify=False),
        run=config.run,
        train=config.train,
        comm=config.comm,
        mesh=config.mesh,
        optimizer=config.optimizer,
        loss_scale=config.loss_scale if scales_loss(config) else None,
        checkpoint=config.checkpoint,
        trace=config.trace,
        flops_per_token=float(train_flops_per_token(config.model, sequence=sequence)),
        rank_names=tuple(_rank_name(plan, cluster, rank) for rank in range(plan.num_ranks)),
        description=describe(config),
    )


def model_from(checkpoint: Checkpoint) -> "tuple[Model, Parameters, Tokenizer]":
    """Return the whole model of a checkpoint, its parameters, and its tokenizer. Imports jax.

    Raises:
        CheckpointError: a tensor is missing or corrupt.
        DataError: the dataset that it was trained on, which holds the tokenizer, is gone.
    """
    import jax

    from jaxpipe.runtime.train_snapshot import restore_params
    from models.gpt import Gpt

    config = config_from(checkpoint.metadata["config"])
    model = Gpt(config.model)
    template = jax.eval_shape(
        lambda: model.init(jax.random.key(0), layers=range(model.num_layers), embed=True, head=True)
    )
    dataset = open_dataset(Path(config.data.folder), verify=False)
    return model, restore_params(checkpoint, template, first_layer=0), dataset.tokenizer


def describe(config: Config) -> dict[str, Any]:
    """Return what is kept beside every result: configuration, versions and hardware."""
    return {
        "config": to_tree(config),
        "versions": {name: metadata.version(name) for name in _PACKAGES},
        "hardware": {"machine": platform.machine(), "cores": os.cpu_count()},
    }


def _rank_name(plan: Plan, cluster: Cluster, rank: int) -> str:
    device = cluster.devices[plan.device(rank)].name
    return f"stage {plan.stage(rank)} of replica {plan.replica(rank)} on {device}"
