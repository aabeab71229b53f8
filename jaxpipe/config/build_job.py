"""From a configuration and its plan to what the runtime takes: the job of all ranks."""

import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jaxpipe.config.check_data import mixture_from
from jaxpipe.config.check_order import order_from
from jaxpipe.config.compatibility import check_compatible
from jaxpipe.config.epochs import with_steps
from jaxpipe.config.kept_inputs import tokenizer_of
from jaxpipe.config.read import Config, to_tree
from jaxpipe.config.resolve import cluster_from
from jaxpipe.config.saved_config import read_merged, saved_config
from jaxpipe.config.tuning import tuned_model_from
from jaxpipe.errors import ConfigError
from jaxpipe.installed import installed_versions
from jaxpipe.models import train_flops_per_token
from jaxpipe.plan import Plan, ResolvedPlan
from jaxpipe.runtime.blas.chosen_products import chosen_products
from jaxpipe.runtime.checkpoint import Checkpoint
from jaxpipe.runtime.data import Mixture, Tokenizer, dataset_folder, open_dataset
from jaxpipe.runtime.data.order.position import ORDER
from jaxpipe.runtime.storage.object_folder import Folder
from jaxpipe.topo import Cluster

if TYPE_CHECKING:  # these import jax
    from jaxpipe.runtime.job import Job
    from jaxpipe.runtime.stage.model import Model, Parameters


def scales_loss(config: Config) -> bool:
    """Return whether the loss is scaled: by default where activations are float16."""
    enabled = config.loss_scale.enabled
    return config.model.compute_dtype == "float16" if enabled is None else enabled


def job_from(
    config: Config,
    plan: Plan,
    *,
    model: "Model | None" = None,
    devices: Sequence[str] = (),
    datasets: Sequence[Folder] = (),
    data: Mixture | None = None,
    cluster: Cluster | None = None,
) -> "Job":
    """Return the job of a run, the same on all ranks. Imports jax.

    `model` is the one to train or to tune, by default the configured one. `devices` are the names
    of the devices in the order of their ranks; by default they are looked up in the configured
    cluster. `datasets` are the folders of the datasets on this host, by default those configured;
    with `data`, none is opened.
    Rank 0 needs the `cluster` for its reports of links; it is read where the names of the devices
    are looked up.

    Raises:
        DataError: a dataset cannot be opened.
        ConfigError: two settings exclude each other, a pattern of `lora.targets` or `train.frozen`
            matches nothing, or the model cannot keep packed documents apart.
    """
    from jaxpipe.runtime.job import Job
    from jaxpipe.runtime.stage.placed import can_place

    # Also of a job that no command has checked: ranks do not know what the table refuses.
    check_compatible(config, plan)
    config = with_steps(config)
    sequence = config.train.sequence or config.model.sequence
    cluster = cluster or (None if devices else cluster_from(config))
    description = describe(config)
    if data is None:
        folders = datasets or tuple(map(dataset_folder, config.data.folders))
        # `check_run` has read it all, once.
        opened = [open_dataset(folder, verify=False) for folder in folders]
        data = mixture_from(config, opened)
        description[ORDER] = order_from(config, folders)
    names = devices if cluster is None else ResolvedPlan.of(plan, cluster).devices
    trained = tuned_model_from(config, model)
    if not can_place(trained):
        has_none = f"{type(trained).__name__} has no `placed_block`; add it, or"
        if config.data.pack:
            raise ConfigError(
                f"`data.pack` is true, and the model must keep packed documents apart: {has_none} "
                "set `data.pack` to false"
            )
        if config.mesh.context > 1:
            raise ConfigError(
                f"`mesh.context` ({config.mesh.context}) needs attention over parts of a sequence: "
                f"{has_none} set `mesh.context` to 1"
            )
    return Job(
        model=trained,
        plan=plan,
        data=data,
        run=config.run,
        train=config.train,
        comm=config.comm,
        mesh=config.mesh,
        optimizer=config.optimizer,
        loss_scale=config.loss_scale if scales_loss(config) else None,
        checkpoint=config.checkpoint,
        trace=config.trace,
        outer=config.outer,
        quorum=config.quorum,
        flops_per_token=float(train_flops_per_token(config.model, sequence=sequence)),
        rank_names=tuple(
            f"stage {plan.stage(rank)} of replica {plan.replica(rank)} on {name}"
            for rank, name in enumerate(names)
        ),
        description=description,
        cluster=cluster,
    )


def model_from(checkpoint: Checkpoint) -> "tuple[Model, Parameters, Tokenizer]":
    """Return the whole model of a checkpoint, its parameters, and its tokenizer. Imports jax.

    Raises:
        CheckpointError: a tensor is missing or corrupt, or the model is not that of the tensors.
        ConfigError: the model predicts labels, not tokens.
        DataError: the tokenizer is neither in the folder of the run nor in its dataset.
    """
    if classes := saved_config(checkpoint).model.classes:
        raise ConfigError(
            f"`model.classes` ({classes}) of {checkpoint.folder} must be 0: only a model of text "
            "continues a text; name a run on text"
        )
    return *restored_model(checkpoint), tokenizer_of(checkpoint)


def restored_model(checkpoint: Checkpoint) -> "tuple[Model, Parameters]":
    """Return the whole model of a checkpoint and its parameters, adapters merged. Imports jax.

    Raises:
        CheckpointError: a tensor is missing or corrupt, or the model is not that of the tensors.
    """
    import jax

    from jaxpipe.models import build_model
    from jaxpipe.runtime.train_snapshot import restore_params

    config = saved_config(checkpoint)
    # A text or a window alone divides into no groups.
    alone = {"routing_groups": 0} if getattr(config.model, "experts", 0) else {}
    model = build_model(replace(config.model, **alone))
    # Shapes alone: the values come from the checkpoint.
    template = jax.eval_shape(
        lambda: model.init(jax.random.key(0), layers=range(model.num_layers), embed=True, head=True)
    )
    return model, restore_params(read_merged(checkpoint), template, first_layer=0)


def describe(config: Config) -> dict[str, Any]:
    """Return the description that every result carries: configuration, versions and hardware."""
    return {
        "config": to_tree(config),
        "versions": installed_versions(),
        "hardware": {
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "products": str(chosen_products(os.environ)),
        },
    }
