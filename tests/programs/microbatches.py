"""Run a step in microbatches, or as a duplex, and compare with one device: JSON in and out."""

import json
import sys
from dataclasses import replace
from typing import Any

import jax

from jaxpipe.baselines.autoshard.graph import trace_step
from jaxpipe.baselines.autoshard.hlo import collectives
from jaxpipe.baselines.autoshard.intra_op import Machine, find_strategy
from jaxpipe.baselines.autoshard.spmd import NamedStep, baseline, placed, sharded_step, train_step
from jaxpipe.baselines.autoshard.strategy import MeshShape, Strategy, ZeroLevel, jax_mesh
from tests.programs.priced_collectives import (
    BATCH,
    GRADIENTS,
    HASTY,
    LINK,
    SEQUENCE,
    apart,
    data,
    experts_over_data,
    on_one_device,
    small,
    state_of,
    totals,
)


def main() -> None:
    """Run every case of the request."""
    print(json.dumps([_run(**case) for case in json.loads(sys.stdin.read())]))  # noqa: T201


def _run(
    model: str, dp: int, microbatches: int, zero: str = "none", *, duplex: bool = False
) -> dict[str, Any]:
    gpt = small(model)
    tokens, targets = data()
    arguments = (state_of(gpt), tokens, targets)
    step = NamedStep(
        run=train_step(gpt, GRADIENTS, remat=False, microbatches=microbatches),
        names=("state", "tokens", "targets"),
        result_names=("state", "loss"),
        microbatches=microbatches,
        duplex=duplex,
    )
    mesh = MeshShape(dp=dp, op=1, dp_link=LINK, op_link=LINK)
    strategy = _strategy(model, step, arguments, mesh, ZeroLevel(zero))
    expected = on_one_device(gpt)
    lying = jax.device_put(
        arguments, placed(arguments, strategy.arguments, jax_mesh(mesh), names=step.names)
    )
    sharded: Any = sharded_step(step, arguments, strategy, donated=())
    compiled = sharded.lower(*lying).compile(HASTY)
    got = compiled(*lying)
    return {
        "compiled": totals(
            (each.kind.value, each.num_bytes) for each in collectives(compiled.as_text())
        ),
        "apart": max(jax.tree.leaves(jax.tree.map(apart, got, expected))),
        "loss": float(expected[1]),
    }


def _strategy(
    model: str, step: NamedStep, arguments: Any, mesh: MeshShape, zero: ZeroLevel
) -> Strategy:
    micro = step.of_one_microbatch(arguments)
    if model == "switch":
        graph = trace_step(step.run, *micro, names=step.names, result_names=step.result_names)
        machine = Machine(flops_per_s=1e9)
        return find_strategy(graph, mesh, machine, pins=experts_over_data()).priced.strategy
    batch = (BATCH // step.microbatches, SEQUENCE)
    found = baseline(arguments[0], batch, batch, mesh=mesh, split={}, zero=zero)
    return replace(found, mesh=mesh)


if __name__ == "__main__":
    main()
