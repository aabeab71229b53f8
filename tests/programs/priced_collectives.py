"""Search a strategy, run it against one device, and list priced and compiled collectives.

JSON in and out: of each case the bytes of each kind, priced and in HLO, and the largest differences
of loss and gradients from one device.
"""

import json
import math
import sys
from collections import Counter
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxpipe.baselines.autoshard.graph import trace_step
from jaxpipe.baselines.autoshard.hlo import collectives
from jaxpipe.baselines.autoshard.intra_op import Machine, find_strategy
from jaxpipe.baselines.autoshard.spmd import (
    NamedStep,
    initial_state,
    placed,
    sharded_step,
    train_step,
)
from jaxpipe.baselines.autoshard.strategy import AxisLink, MeshShape, Pins, jax_mesh, parse_sharding
from jaxpipe.models.gpt import Gpt
from jaxpipe.models.gpt_config import GptConfig

BATCH, SEQUENCE, VOCABULARY = 16, 16, 64
LINK = AxisLink(latency_s=1e-6, bandwidth_bytes_per_s=1e9)
HASTY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Compile in haste: what is run here is small."""
GRADIENTS = optax.sgd(1.0)
"""Old less new parameters are the gradients."""


def main() -> None:
    """Run every case of the request."""
    print(json.dumps([run(**case) for case in json.loads(sys.stdin.read())]))  # noqa: T201


def run(model: str, dp: int, op: int = 1, *, expert_parallel: bool = False) -> dict[str, Any]:
    """Return the collectives of a searched strategy, and how far it is from one device."""
    gpt = small(model)
    state = state_of(gpt)
    tokens, targets = data()
    step = NamedStep(
        run=train_step(gpt, GRADIENTS, remat=False),
        names=("state", "tokens", "targets"),
        result_names=("state", "loss"),
    )
    mesh = MeshShape(dp=dp, op=op, dp_link=LINK, op_link=LINK)
    arguments = (state, tokens, targets)
    graph = trace_step(step.run, *arguments, names=step.names, result_names=step.result_names)
    pins = experts_over_data() if expert_parallel else None
    found = find_strategy(graph, mesh, Machine(flops_per_s=1e9), pins=pins).priced
    strategy = found.strategy
    lying = jax.device_put(
        arguments, placed(arguments, strategy.arguments, jax_mesh(mesh), names=step.names)
    )
    expected = on_one_device(gpt)
    sharded: Any = sharded_step(step, arguments, strategy, donated=())
    compiled = sharded.lower(*lying).compile(HASTY)
    got = compiled(*lying)
    return {
        "priced": totals((each.kind.value, each.num_bytes) for each in found.collectives),
        "compiled": totals(
            (each.kind.value, each.num_bytes) for each in collectives(compiled.as_text())
        ),
        "apart": max(jax.tree.leaves(jax.tree.map(apart, got, expected))),
    }


def small(model: str) -> Gpt:
    """Return a dense model, or one with a Switch layer."""
    return Gpt(
        GptConfig(
            num_layers=1,
            dim=16,
            num_heads=8,
            sequence=SEQUENCE,
            vocabulary=VOCABULARY,
            tied=False,
            experts=8 if model == "switch" else 0,
        )
    )


def experts_over_data() -> Pins:
    """Return the pins of expert parallelism: the batch and the experts over dp."""
    texts = {"tokens": "S0R", "targets": "S0R", "*.moe.up": "S0RR", "*.moe.down": "S0RR"}
    return Pins(arguments={path: parse_sharding(text) for path, text in texts.items()})


@cache
def state_of(gpt: Gpt) -> Any:
    """Return a fresh state."""
    return initial_state(gpt, GRADIENTS, jax.random.key(0), dtype="float32")


def data() -> Any:
    """Return tokens and targets."""
    drawn = np.random.default_rng(0).integers(VOCABULARY, size=(2, BATCH, SEQUENCE))
    return jnp.asarray(drawn, dtype=jnp.int32)


@cache
def on_one_device(gpt: Gpt) -> Any:
    """Return the state and the loss after a step of the whole batch on one device."""
    step, arguments = jax.jit(train_step(gpt, GRADIENTS, remat=False)), (state_of(gpt), *data())
    return step.lower(*arguments).compile(HASTY)(*arguments)


def totals(pairs: Any) -> dict[str, list[int]]:
    """Return how many there are of each kind, and their bytes."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for kind, num_bytes in pairs:
        counts[kind] += 1
        sizes[kind] += num_bytes
    return {kind: [counts[kind], sizes[kind]] for kind in sorted(counts)}


def apart(got: Any, expected: Any) -> float:
    """Return the largest difference of two arrays; nothing is close to what is not a number."""
    largest = float(jnp.max(jnp.abs(got - expected)))
    return math.inf if math.isnan(largest) else largest


if __name__ == "__main__":
    main()
