"""Compile the data-parallel step of `memory` in this process: JSON in, JSON out.

The memory of a device under data parallelism is that of one device with its share of the batch.
"""

import json
import sys
from dataclasses import replace
from typing import Final

import jax
import jax.numpy as jnp
import optax

from experiments.hidup.workloads import routed_experts
from jaxpipe.baselines.autoshard.hlo import CompileTarget, compile_step, target_devices
from jaxpipe.baselines.autoshard.spmd import initial_state, train_step
from jaxpipe.models import GptConfig, load_preset
from jaxpipe.models.gpt import Gpt

_SAMPLES: Final = 32


def main() -> None:
    """Answer a request: a model, and the number of devices, which sets its experts."""
    print(json.dumps(_peak(**json.loads(sys.stdin.read()))))


def _peak(model: str, devices: int) -> dict[str, int]:
    published = GptConfig(**load_preset(model))
    config = replace(published, experts=routed_experts(model, devices=devices))
    gpt, optimizer = Gpt(config), optax.adam(1e-4)
    state = jax.eval_shape(
        lambda key: initial_state(gpt, optimizer, key, dtype="float32"), jax.random.key(0)
    )
    if config.patch:
        side = int((config.sequence - 1) ** 0.5) * config.patch
        inputs = jax.ShapeDtypeStruct((_SAMPLES, side, side, config.channels), jnp.uint8)
        targets = jax.ShapeDtypeStruct((_SAMPLES,), jnp.int32)
    else:
        inputs = targets = jax.ShapeDtypeStruct((_SAMPLES, config.sequence), jnp.int32)
    (device,) = target_devices(CompileTarget.V100, num_devices=1)
    lies = jax.sharding.SingleDeviceSharding(device)
    arguments = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=lies),
        (state, inputs, targets),
    )
    step = jax.jit(train_step(gpt, optimizer, remat=False), donate_argnums=0)
    memory = compile_step(step, arguments, CompileTarget.V100).memory
    parameters = sum(leaf.size * 4 for leaf in jax.tree.leaves(state["params"]))
    return {
        "arguments": memory.arguments,
        "peak": memory.peak,
        "parameter_bytes": parameters,
    }


if __name__ == "__main__":
    main()
