"""Simulation of a configured run: how long one step of its plan takes on its cluster."""

from dataclasses import replace

import numpy as np

from jaxpipe.config import Config, cluster_from
from jaxpipe.models import DTYPE_BYTES, activation_bytes
from jaxpipe.models.bottleneck_costs import narrow_bytes
from jaxpipe.network import MessageCosts
from jaxpipe.plan import Plan, check_islands, islands_of
from jaxpipe.propose.conditions import codecs_of, conditions_of
from jaxpipe.propose.gpt_profile import gpt_profile
from jaxpipe.propose.resolve import plan_from
from jaxpipe.schedule import Remat
from jaxpipe.simulate import Conditions, Overheads, plan_step, replay_step, simulate
from jaxpipe.topo import Cluster
from jaxpipe.trace import Trace, of_ranks, side_by_side


def simulate_step(
    config: Config, *, measured: Trace | None = None, cluster: Cluster | None = None
) -> Trace:
    """Return the simulated trace of one step of a configured run, without running it.

    The computation takes as long as its FLOPs, or `paced.profile`, say. With the `measured` trace
    of a run of this configuration it takes the median of the measured times instead, so that what
    differs from that trace is not compute. `cluster` replaces the configured links: for example
    those of `jaxpipe.topo.without_network`. With an outer loop it is an inner step, of all islands
    side by side; `jaxpipe.simulate.outer_step.outer_times` has the outer steps.

    >>> from jaxpipe.config import config_from
    >>> config = config_from({
    ...     "run": {"folder": "runs/xl"},
    ...     "data": {"folder": "data/text"},
    ...     "model": {"preset": "gpt-xl-24", "compute_dtype": "float16"},
    ...     "plan": {
    ...         "cluster": "case5-worldwide",
    ...         "stages": 8,
    ...         "replicas": 8,
    ...         "microbatch": 1,
    ...         "schedule": "1f1b",
    ...     },
    ...     "train": {"batch": 512, "remat": "full"},
    ... })
    >>> step = simulate_step(config)
    >>> step.truth.value, len(step.rank_names)
    ('simulated', 64)

    Raises:
        ConfigError: there is no such cluster, or the speed of a device is unknown and no trace was
            measured.
        PlanError: cluster, model and batch do not fit the plan, or the trace is of another plan.
    """
    plan = plan_from(config)
    if measured is None:
        conditions = conditions_of(config, cluster, remat=plan.remat)
    else:
        conditions = sizes_of(config, plan, cluster or cluster_from(config))
    if config.outer.islands <= 1:
        return _simulated(plan, conditions, measured)
    check_islands(plan, num_islands=config.outer.islands)
    traces: list[Trace] = []
    for island in islands_of(plan, num_islands=config.outer.islands):
        part = None if measured is None else of_ranks(measured, island.ranks)
        traces.append(_simulated(island.plan, conditions, part))
    return side_by_side(traces)


def _simulated(plan: Plan, conditions: Conditions, measured: Trace | None) -> Trace:
    if measured is None:
        return simulate(plan_step(plan, conditions))
    return simulate(replay_step(plan, conditions, measured))


def sizes_of(config: Config, plan: Plan, cluster: Cluster) -> Conditions:
    """Return the conditions of a replay, in which only the bytes of the profile count."""
    model = config.model
    restart_bytes = None if config.run.keep_warm else cluster.restart_bytes
    messages = MessageCosts(restart_bytes=restart_bytes)
    sequence = config.train.sequence or model.sequence
    profile = replace(
        # Any speed: no seconds are used.
        gpt_profile(model, remat=plan.remat or Remat.NONE, flops_per_s=1.0),
        activation_bytes=activation_bytes(model, batch=1, sequence=sequence),
        narrow_bytes=narrow_bytes(model, batch=1, sequence=sequence),
    )
    return Conditions(
        cluster=cluster,
        profile=profile,
        slow=np.ones(len(cluster)),
        gradient_bytes=DTYPE_BYTES[model.param_dtype],
        overheads=Overheads(messages=messages, gradients=messages),
        codecs=codecs_of(config),
        activation_value_bytes=DTYPE_BYTES[model.compute_dtype],
        gathered_bytes=DTYPE_BYTES[model.param_dtype] if config.optimizer.sharded else 0.0,
    )
