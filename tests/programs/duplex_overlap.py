"""Compile a Switch layer for GPUs that are not there, whole and as a duplex: JSON in and out."""

import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxpipe.baselines.autoshard.graph import trace_step
from jaxpipe.baselines.autoshard.hlo import (
    CompileTarget,
    async_collectives,
    collectives,
    target_devices,
)
from jaxpipe.baselines.autoshard.intra_op import Machine, find_strategy
from jaxpipe.baselines.autoshard.spmd import (
    NamedStep,
    abstract_arrays,
    initial_state,
    placed,
    sharded_step,
    train_step,
)
from jaxpipe.baselines.autoshard.strategy import AxisLink, MeshShape, Pins, jax_mesh, parse_sharding
from jaxpipe.models.gpt import Gpt
from jaxpipe.models.gpt_config import GptConfig

OPTIMIZER = optax.sgd(0.1)
NUM_DEVICES, BATCH = 8, 64
LINK = AxisLink(latency_s=1e-5, bandwidth_bytes_per_s=1.2e9)
OPTIONS = {
    # Products by cuBLAS: without a GPU nothing can be tuned.
    "xla_gpu_enable_triton_gemm": False,
    # By default this version of XLA ends each all-to-all right after its start.
    "xla_gpu_enable_latency_hiding_scheduler": True,
}


def main() -> None:
    """Compile every case of the request."""
    print(json.dumps([compiled_for(**case) for case in json.loads(sys.stdin.read())]))  # noqa: T201


def compiled_for(target: str, *, duplex: bool, layers: int = 1) -> dict[str, Any]:
    """Return the collectives of one training step, and what is computed during each."""
    gpt = Gpt(
        GptConfig(
            num_layers=layers,
            dim=256,
            num_heads=8,
            sequence=64,
            vocabulary=64,
            tied=False,
            experts=NUM_DEVICES,
        )
    )
    microbatches = 2 if duplex else 1
    step = NamedStep(
        run=train_step(gpt, OPTIMIZER, remat=False, microbatches=microbatches),
        names=("state", "tokens", "targets"),
        result_names=("state", "loss"),
        microbatches=microbatches,
        duplex=duplex,
    )
    state = jax.eval_shape(
        lambda key: initial_state(gpt, OPTIMIZER, key, dtype="float32"), jax.random.key(0)
    )
    tokens = jax.ShapeDtypeStruct((BATCH, 64), jnp.int32)
    arguments = (state, tokens, tokens)
    mesh = MeshShape(dp=NUM_DEVICES, op=1, dp_link=LINK, op_link=LINK)
    strategy = find_strategy(
        trace_step(
            step.run,
            *step.of_one_microbatch(arguments),
            names=step.names,
            result_names=step.result_names,
        ),
        mesh,
        # Slow devices: fast ones would compute everything twice, and reduce no gradients.
        Machine(flops_per_s=1e11),
        pins=_expert_parallelism(),
    ).priced.strategy
    devices = target_devices(CompileTarget(target), num_devices=NUM_DEVICES)
    shardings = placed(arguments, strategy.arguments, jax_mesh(mesh, devices), names=step.names)
    jitted = sharded_step(step, arguments, strategy, devices=devices)
    traced = jitted.trace(*abstract_arrays(arguments, shardings))  # type: ignore[attr-defined]
    text = traced.lower(lowering_platforms=("cuda",)).compile(OPTIONS).as_text()
    return {
        "all_reduces": sum(each.kind.value == "all-reduce" for each in collectives(text)),
        "all_to_alls": sum(each.kind.value == "all-to-all" for each in collectives(text)),
        "products": [
            each.num_products for each in async_collectives(text) if each.kind == "all-to-all"
        ],
    }


def _expert_parallelism() -> Pins:
    texts = {
        "tokens": "S0R",
        "targets": "S0R",
        "state.params.embed.*": "RR",
        "*.moe.up": "S0RR",
        "*.moe.down": "S0RR",
    }
    return Pins(arguments={path: parse_sharding(text) for path, text in texts.items()})


if __name__ == "__main__":
    main()
