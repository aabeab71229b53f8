"""Conditions of a configured run: what its model costs on its cluster, to plan and to simulate."""

from dataclasses import replace
from pathlib import Path

from jaxpipe.collective import Codecs
from jaxpipe.config import Config, cluster_from
from jaxpipe.models import DTYPE_BYTES, ModelConfig
from jaxpipe.plan.cost import BytesPerParameter, Profile, slowness
from jaxpipe.propose.costed import costed
from jaxpipe.propose.gpt_profile import bytes_each, gpt_profile, with_bottlenecks
from jaxpipe.propose.trained_part import TrainedPart
from jaxpipe.schedule import Remat
from jaxpipe.simulate import Conditions
from jaxpipe.topo import Cluster
from jaxpipe.topo.gpu import Precision
from jaxpipe.topo.this_machine import is_this_machine


def conditions_of(
    config: Config,
    cluster: Cluster | None = None,
    *,
    remat: Remat | None = None,
    chunk_bytes: float | None = None,
) -> Conditions:
    """Return the conditions under which a plan of a configuration is simulated.

    `remat` is that of the plan, by default the configured one, or none. Gradients are sent in
    chunks of `chunk_bytes`, by default those of the configuration.

    Raises:
        ConfigError: the speed of a device is unknown, or there is no such cluster.
    """
    conditions, _ = costs_of(config, cluster, remat=remat, chunk_bytes=chunk_bytes)
    return conditions


def costs_of(
    config: Config,
    cluster: Cluster | None = None,
    *,
    remat: Remat | None = None,
    chunk_bytes: float | None = None,
) -> tuple[Conditions, Precision]:
    """Return the conditions of a configuration, and the precision of its matrix products.

    Raises:
        ConfigError: the speed of a device is unknown, or there is no such cluster.
    """
    model, paced = trained_model(config), config.paced
    remat = remat or config.train.remat or Remat.NONE
    known = costed(
        model,
        cluster_from(config) if cluster is None else cluster,
        remat=remat,
        profile=None if paced.profile is None else Path(paced.profile),
        tflops=paced.tflops,
        matmul_precision=config.run.matmul_precision,
        profiles_of=paced.profile_of,
    )
    part = TrainedPart(lora=config.lora, frozen=config.train.frozen)
    conditions = Conditions(
        cluster=known.cluster,
        profile=with_bottlenecks(part.profile(known.profile, model), model),
        slow=slowness(known.cluster, known.profile, known.precision),
        gradient_bytes=bytes_of(config).gradient,
        overheads=known.overheads(
            chunk_bytes=config.comm.chunk_bytes if chunk_bytes is None else chunk_bytes,
            # What was fitted to messages between regions does not hold inside a machine.
            ideal=paced.ideal or is_this_machine(known.cluster.name),
            keep_warm=config.run.keep_warm,
        ),
        recomputes=remat is Remat.FULL,
        profiles={
            name: with_bottlenecks(part.profile(profile, model), model)
            for name, profile in known.profiles.items()
        },
        codecs=codecs_of(config),
        activation_value_bytes=DTYPE_BYTES[model.compute_dtype],
        gathered_bytes=DTYPE_BYTES[model.param_dtype] if config.optimizer.sharded else 0.0,
        outer=config.outer if config.outer.is_on else None,
    )
    return conditions, known.precision


def counted_profile(config: Config, remat: Remat | None = None) -> Profile:
    """Return the counted FLOPs of the model's parts as a profile: seconds on a device of 1 FLOP/s.

    `remat` is that of the plan, by default the configured one, or none.
    """
    remat = remat or config.train.remat or Remat.NONE
    return gpt_profile(trained_model(config), remat=remat, flops_per_s=1.0)


def trained_model(config: Config) -> ModelConfig:
    """Return the configured model with sequences as long as they are trained."""
    return replace(config.model, sequence=config.train.sequence or config.model.sequence)


def bytes_of(config: Config) -> BytesPerParameter:
    """Return the bytes per parameter that devices hold: of values, gradients and moments."""
    every = bytes_each(config.model, config.optimizer)
    return TrainedPart(lora=config.lora, frozen=config.train.frozen).bytes_each(every, config.model)


def codecs_of(config: Config) -> Codecs:
    """Return the configured codecs of messages."""
    comm = config.comm
    return Codecs(
        boundary=comm.boundary, gradients=comm.gradients, top_k_fraction=comm.top_k_fraction
    )
