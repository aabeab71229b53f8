"""Every preset for text: parameters, FLOPs per token, and the memory of its stages under a plan.

The plan is the one with the fewest stages that fit into the memory of the devices: all devices of
the cluster, in their order, equal stages, 1F1B, microbatches of one sample, layers recomputed.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.table import Row
from jaxpipe import topo
from jaxpipe.models import ModelConfig, costs, preset_config, presets
from jaxpipe.models.gpt_config import GptConfig
from jaxpipe.plan import Plan, PlanConfig, default_plan
from jaxpipe.plan.cost import stage_memory
from jaxpipe.propose.gpt_profile import bytes_each, gpt_profile
from jaxpipe.schedule import Remat, ScheduleKind
from jaxpipe.topo import Cluster

_GIB = 2**30


def rows(cases: Mapping[str, Any]) -> Iterator[Row]:
    """Yield a row for each preset that predicts tokens; nothing is trained or searched."""
    for name in presets():
        model = preset_config(name)
        if not (isinstance(model, GptConfig) and model.classes):
            yield row_of(name, model, cases)


def row_of(name: str, model: ModelConfig, cases: Mapping[str, Any]) -> Row:
    """Return the sizes of a model, and its memory under a plan for each cluster."""
    whole = costs.num_parameters(model, layers=model.num_layers, embed=True, head=True)
    per_token = costs.train_flops_per_token(model, sequence=model.sequence)
    row: dict[str, str | int | float] = {
        "preset": name,
        "sequence": model.sequence,
        "parameters, M": whole / 1e6,
        "GFLOPs per token": per_token / 1e9,
    }
    for cluster in cases["clusters"]:
        row |= _planned(model, topo.load(cluster), tokens=cases["tokens_per_step"])
    return row


def _planned(model: ModelConfig, cluster: Cluster, *, tokens: int) -> dict[str, str]:
    least = min(each.memory_bytes or 0 for each in cluster.devices)
    named = {"plan": f"{cluster.name}: stages x replicas", "memory": f"{cluster.name}: GiB a stage"}
    for plan in _plans(model, cluster, tokens=tokens):
        needs = _memory(plan, model)
        if max(needs) <= least:
            shape = f"{plan.pipelines[0].num_ranks} x {plan.num_replicas}"
            each = sorted({f"{need / _GIB:.2f}" for need in needs}, key=float)
            span = " to ".join(dict.fromkeys((each[0], each[-1])))
            return {named["plan"]: shape, named["memory"]: span}
    return {named["plan"]: "none fits", named["memory"]: ""}


def _plans(model: ModelConfig, cluster: Cluster, *, tokens: int) -> Iterator[Plan]:
    """Yield the plans with the numbers of stages that divide the devices, fewest first."""
    size = len(cluster)
    for stages in range(1, min(size, model.num_layers) + 1):
        if size % stages:
            continue
        replicas = size // stages
        samples = math.ceil(tokens / model.sequence / replicas)
        config = PlanConfig(
            cluster=cluster.name,
            stages=stages,
            replicas=replicas,
            microbatch=1,
            schedule=ScheduleKind.ONE_F_ONE_B,
        )
        yield default_plan(
            config,
            cluster,
            num_layers=model.num_layers,
            batch=samples * replicas,
            tied=model.tied,
        )


def _memory(plan: Plan, model: ModelConfig) -> Sequence[int]:
    """Return the bytes of each stage, of parameters, gradients, moments and activations."""
    profile = gpt_profile(model, remat=Remat.FULL, flops_per_s=1.0)
    return [each.total for each in stage_memory(plan, profile, each=bytes_each(model))]
