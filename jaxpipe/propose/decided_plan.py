"""The plan of a section `[plan]` with shape, microbatch and schedule: nothing is searched."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from jaxpipe.collective import AllReduceKind, CodecKind
from jaxpipe.config import Config, is_tuned, tuned_model_from
from jaxpipe.models import num_parameters
from jaxpipe.models.bottleneck_costs import bottleneck_parameters
from jaxpipe.plan import Cut, Plan, default_plan
from jaxpipe.propose.conditions import trained_model
from jaxpipe.propose.device_speeds import precision_of
from jaxpipe.propose.gpt_profile import gpt_profile
from jaxpipe.schedule import Remat
from jaxpipe.search.balance import balanced_cut
from jaxpipe.simulate import fastest_all_reduce
from jaxpipe.topo import Cluster

if TYPE_CHECKING:  # it imports jax
    from jaxpipe.runtime.stage.model import Model

_GRADIENT_BYTES = 4


def decided_plan(config: Config, cluster: Cluster, *, model: "Model | None" = None) -> Plan:
    """Return the plan of a section whose shape, microbatch and schedule are set.

    The partition is the configured one, or the one whose slowest stage is fastest; the all-reduce
    the configured one, or the fastest.

    Raises:
        PlanError: cluster, model and batch do not fit.
    """
    plan = default_plan(
        config.plan,
        cluster,
        num_layers=config.model.num_layers,
        batch=config.train.batch,
        tied=config.model.tied,
        partition=partial(_balanced, config, cluster),
    )
    if config.plan.all_reduce is None:
        plan = replace(plan, all_reduce=_all_reduce(config, plan, cluster, model))
    return plan


def _balanced(
    config: Config, cluster: Cluster, num_stages: int, rows: Sequence[tuple[int, ...]]
) -> Cut:
    """Return the cut by cost: of counted FLOPs, on devices of known or else of relative speed."""
    model = trained_model(config)
    precision = precision_of(model, cluster, matmul_precision=config.run.matmul_precision)
    is_known = all(device.has_speed for device in cluster.devices)
    speeds = [
        device.flops_per_s(precision) if is_known else device.relative_speed
        for device in cluster.devices
    ]
    fastest = max(speeds)
    profile = gpt_profile(model, remat=Remat.NONE, flops_per_s=fastest)
    slow = fastest / np.array(speeds)
    placement = np.tile(np.array(rows), num_stages // len(rows[0]))
    return balanced_cut(profile, slow[placement].max(axis=0))


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
    starts = accumulate(plan.segments, initial=0)
    segment_bytes = [
        _GRADIENT_BYTES
        * (
            of_stage(layers=n, embed=number == 0, head=number == last)
            + bottleneck_parameters(model, layers=range(start, start + n))
        )
        for number, (start, n) in enumerate(zip(starts, plan.segments, strict=False))
    ]
    return segment_bytes, _GRADIENT_BYTES * tokens
