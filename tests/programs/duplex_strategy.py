"""Search strategies for two halves, run them, and compare with one device: JSON in and out."""

import json
import sys
from collections import Counter
from random import Random
from typing import Any

import jax

from jaxpipe.baselines.autoshard.duplex import CollectiveProfile, CostModel, DeviceSpeed, search
from jaxpipe.baselines.autoshard.duplex.describe import count_step_collectives
from jaxpipe.baselines.autoshard.duplex_step import realized
from jaxpipe.baselines.autoshard.hlo import collectives
from jaxpipe.baselines.autoshard.spmd import NamedStep, run_program, train_step
from jaxpipe.baselines.gpt.model_names import model_names
from jaxpipe.baselines.gpt.model_sizes import duplex_graph
from tests.programs.priced_collectives import (
    BATCH,
    GRADIENTS,
    HASTY,
    apart,
    data,
    on_one_device,
    small,
    state_of,
)


def main() -> None:
    """Run every case of the request."""
    print(json.dumps([_run(**case) for case in json.loads(sys.stdin.read())]))  # noqa: T201


def _run(model: str, devices: int, profile: dict[str, float], flops_per_s: float) -> dict[str, Any]:
    gpt = small(model)
    tokens, targets = data()
    arguments = (state_of(gpt), tokens, targets)
    step = NamedStep(
        run=train_step(gpt, GRADIENTS, remat=False, microbatches=2),
        names=("state", "tokens", "targets"),
        result_names=("state", "loss"),
        microbatches=2,
        duplex=True,
    )
    graph = duplex_graph(gpt.config, batch=BATCH, dtype="float32")
    costs = CostModel(
        graph=graph,
        device=DeviceSpeed(flops_per_s=flops_per_s),
        profile=CollectiveProfile(devices=devices, **profile),  # type: ignore[arg-type]
    )
    found = search(costs)
    strategy = realized(
        step,
        arguments,
        graph=graph,
        decisions=found.strategy,
        names=model_names(gpt.config),
        num_devices=devices,
    )
    ran = run_program(step, arguments, strategy, num_steps=1, compiler_options=HASTY)
    expected, _ = on_one_device(gpt)
    return {
        "apart": max(jax.tree.leaves(jax.tree.map(apart, ran.states[0], expected))),
        "labels": sorted({each.signature.label for each in found.strategy}),
        "stored": sorted({str(p.stored) for each in found.strategy for p in each.placements}),
        "compiled": Counter(each.kind.value for each in collectives(ran.hlo)),
        "predicted": {str(k): n for k, n in count_step_collectives(found.strategy).items()},
    }


def random_speeds(seed: int) -> dict[str, Any]:
    """Return speeds of products and of each collective, from slow to fast: any strategy may win."""
    random = Random(seed)
    kinds = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")
    return {
        "profile": {kind: 10 ** random.uniform(6, 11) for kind in kinds},
        "flops_per_s": 10 ** random.uniform(9, 12),
    }


if __name__ == "__main__":
    main()
