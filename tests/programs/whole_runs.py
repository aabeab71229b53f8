"""Train a few steps sharded and on one device, and tell how far apart they end: JSON in and out."""

import json
import sys
from functools import cache, partial
from typing import Any

import jax
import numpy as np
import optax

from jaxpipe.baselines.autoshard.graph import trace_step
from jaxpipe.baselines.autoshard.hlo import KEEP_RECOMPUTED, collectives, count_collectives
from jaxpipe.baselines.autoshard.intra_op import Machine, find_strategy
from jaxpipe.baselines.autoshard.spmd import (
    Combining,
    NamedStep,
    baseline,
    initial_state,
    partitioned_step,
    placed,
    sharded_step,
    train_step,
)
from jaxpipe.baselines.autoshard.strategy import AxisLink, MeshShape, Strategy, ZeroLevel, jax_mesh
from jaxpipe.baselines.gpt.alpa_gpt import AlpaGpt
from jaxpipe.models.gpt import Gpt
from jaxpipe.models.gpt_config import GptConfig

BATCH, NUM_STEPS, VOCABULARY = (4, 8), 2, 32
OPTIMIZER = optax.adam(1e-2, eps=0.1)
"""Its epsilon is so large that rounding turns no update round."""


def main() -> None:
    """Run every case of the request."""
    print(json.dumps([_run(**case) for case in json.loads(sys.stdin.read())]))  # noqa: T201


def _run(
    model: str, dp: int, op: int, zero: str = "none", dtype: str = "float32", **options: bool
) -> dict[str, Any]:
    config = GptConfig(
        num_layers=1,
        dim=16,
        num_heads=4,
        sequence=BATCH[1],
        vocabulary=VOCABULARY,
        tied=model == "gpt",
        compute_dtype=dtype,
    )
    gpt = AlpaGpt(config) if model == "alpa" else Gpt(config)
    state = _state(gpt, dtype)
    tokens, targets = _data()
    step = NamedStep(
        run=train_step(gpt, OPTIMIZER, remat=options.get("remat", False)),
        names=("state", "tokens", "targets"),
        result_names=("state", "loss"),
    )
    arguments = (state, tokens, targets)
    expected = _expected(gpt, dtype)
    link = AxisLink(latency_s=0.0, bandwidth_bytes_per_s=1e10)
    mesh = MeshShape(dp=dp, op=op, dp_link=link, op_link=link)
    if options.get("found", False):
        strategy = _found(step, arguments, mesh)
    else:
        strategy = baseline(state, BATCH, BATCH, mesh=mesh, split=gpt.split, zero=ZeroLevel(zero))
    make: Any = partitioned_step if options.get("by_compiler", False) else sharded_step
    if options.get("combines", False):
        make = partial(sharded_step, combining=Combining(by_compiler=True))
    lying = jax.device_put(
        arguments, placed(arguments, strategy.arguments, jax_mesh(mesh), names=step.names)
    )
    compiled = _compiled(make(step, arguments, strategy), *lying)
    got = _trained(compiled, *lying)
    return {
        "counts": count_collectives(collectives(compiled.as_text())),
        "num_choices": len(strategy.operators),
        "apart": max(jax.tree.leaves(jax.tree.map(_apart, got, expected))),
    }


@cache
def _state(gpt: AlpaGpt | Gpt, dtype: str) -> Any:
    fresh = jax.jit(lambda key: initial_state(gpt, OPTIMIZER, key, dtype=dtype))
    return jax.tree.map(
        np.asarray, fresh(jax.random.key(0))
    )  # the steps donate what they are given


@cache
def _expected(gpt: AlpaGpt | Gpt, dtype: str) -> tuple[Any, Any]:
    step = jax.jit(train_step(gpt, OPTIMIZER, remat=False))
    arguments = (_state(gpt, dtype), *_data())
    return _trained(_compiled(step, *arguments), *arguments)


@cache
def _data() -> Any:
    return np.random.default_rng(0).integers(VOCABULARY, size=(2, *BATCH), dtype=np.int32)


def _compiled(step: Any, *arguments: Any) -> Any:
    """Compile in haste: what is run here is small."""
    hasty = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    return step.lower(*arguments).compile({**KEEP_RECOMPUTED, **hasty})


def _found(step: NamedStep, arguments: tuple[Any, ...], mesh: MeshShape) -> Strategy:
    graph = trace_step(step.run, *arguments, names=step.names, result_names=step.result_names)
    machine = Machine(flops_per_s=1e9, launch_s=0.0)
    return find_strategy(graph, mesh, machine).priced.strategy


def _trained(step: Any, state: Any, tokens: Any, targets: Any) -> tuple[Any, Any]:
    loss = None
    for _ in range(NUM_STEPS):
        state, loss = step(state, tokens, targets)
    return state, loss


def _apart(got: Any, expected: Any) -> float:
    wide = (np.asarray(each).astype(np.float64) for each in (got, expected))
    return float(np.max(np.abs(np.subtract(*wide))))


if __name__ == "__main__":
    main()
