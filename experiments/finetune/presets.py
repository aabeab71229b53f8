"""Every preset for text: parameters, FLOPs per token, and the memory of its stages under a plan."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from experiments.table import Row
from jaxpipe.errors import PlanError
from jaxpipe.models import ModelConfig, costs, preset_config
from jaxpipe.models.gpt_config import GptConfig
from jaxpipe.models.load_presets import presets
from jaxpipe.plan.cost import stage_memory
from jaxpipe.propose.proposal import propose_for, task_and_conditions
from jaxpipe.propose.request import PlanRequest

_GIB = 2**30


def rows(cases: Mapping[str, Any]) -> Iterator[Row]:
    """Yield a row for each preset that predicts tokens; the plans are searched, not run."""
    for name in presets():
        model = preset_config(name)
        if not (isinstance(model, GptConfig) and model.classes):
            yield row_of(name, model, cases)


def row_of(name: str, model: ModelConfig, cases: Mapping[str, Any]) -> Row:
    """Return the sizes of a model, and its memory under the plan found for each cluster."""
    whole = costs.num_parameters(model, layers=model.num_layers, embed=True, head=True)
    per_token = costs.train_flops_per_token(model, sequence=model.sequence)
    row: dict[str, str | int | float] = {
        "preset": name,
        "sequence": model.sequence,
        "parameters, M": whole / 1e6,
        "GFLOPs per token": per_token / 1e9,
    }
    batch = math.ceil(cases["tokens_per_step"] / model.sequence)
    for cluster in cases["clusters"]:
        row |= _planned(name, model, cluster, batch=batch, budget_s=cases["budget_s"])
    return row


def _planned(
    name: str, model: ModelConfig, cluster: str, *, batch: int, budget_s: float
) -> dict[str, str]:
    request = PlanRequest(cluster=cluster, model=name, batch=batch, budget=budget_s)
    task, conditions = task_and_conditions(request, model)
    try:
        found = propose_for(request, model, task, conditions, observe=lambda _: None)
    except PlanError:
        return {f"{cluster}: plan": "no plan fits", f"{cluster}: GiB of each stage": ""}
    plan = found.plan
    shape = f"{plan.pipelines[0].num_ranks} x {plan.num_replicas}"
    memory = stage_memory(plan, task.profile, each=task.bytes_each, replica=0)
    return {
        f"{cluster}: plan": shape,
        f"{cluster}: GiB of each stage": ", ".join(f"{each.total / _GIB:.2g}" for each in memory),
    }
