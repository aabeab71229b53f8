"""Compile the step of one strategy for V100s in this process: JSON in, JSON out."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.hidup.workloads import cluster, routed_experts
from jaxpipe.baselines.autoshard.duplex import (
    FULL,
    CostModel,
    DeviceSpeed,
    OperatorDecision,
    search,
)
from jaxpipe.baselines.autoshard.duplex.describe import count_step_collectives
from jaxpipe.baselines.autoshard.duplex.duplex_systems import strategy_of
from jaxpipe.baselines.autoshard.duplex_step import realized
from jaxpipe.baselines.autoshard.hlo import (
    CompileTarget,
    async_collectives,
    collectives,
    target_devices,
)
from jaxpipe.baselines.autoshard.hlo.hlo_collectives import bytes_by_kind, count_collectives
from jaxpipe.baselines.autoshard.spmd import (
    NamedStep,
    abstract_arrays,
    initial_state,
    placed,
    sharded_step,
    train_step,
)
from jaxpipe.baselines.autoshard.strategy import jax_mesh
from jaxpipe.baselines.gpt.model_names import model_names
from jaxpipe.baselines.gpt.model_sizes import duplex_graph
from jaxpipe.baselines.systems import System
from jaxpipe.collective.kinds import CollectiveKind
from jaxpipe.models import GptConfig, load_preset
from jaxpipe.models.gpt import Gpt

_OPTIONS = {
    "xla_gpu_enable_triton_gemm": False,  # products by cuBLAS: without a GPU nothing can be tuned
    "xla_gpu_enable_latency_hiding_scheduler": True,
}


def main() -> None:
    """Answer a request: a model, a system, devices, and samples of each device."""
    print(json.dumps(_compiled(**json.loads(sys.stdin.read()))))


def _compiled(model: str, system: str, devices: int, samples: int) -> dict[str, Any]:
    config = replace(
        GptConfig(**load_preset(model)), experts=routed_experts(model, devices=devices)
    )
    batch, is_duplex = samples * devices, system == System.HIDUP.value
    graph = duplex_graph(config, batch=batch, dtype="float32")
    if is_duplex:
        profile = cluster(6, f"{devices} GPUs")
        decisions = search(
            CostModel(graph=graph, device=DeviceSpeed(flops_per_s=14e12), profile=profile)
        ).strategy
    else:
        decisions = strategy_of(System(system), graph, num_devices=devices)
    optimizer, microbatches = optax.adam(1e-4), 2 if is_duplex else 1
    gpt = Gpt(config)
    step = NamedStep(
        run=train_step(gpt, optimizer, remat=False, microbatches=microbatches),
        names=("state", "tokens", "targets"),
        result_names=("state", "loss"),
        microbatches=microbatches,
        duplex=is_duplex,
    )
    state = jax.eval_shape(
        lambda key: initial_state(gpt, optimizer, key, dtype="float32"), jax.random.key(0)
    )
    arguments = (state, *_data(config, batch))
    strategy = realized(
        step,
        arguments,
        graph=graph,
        decisions=decisions,
        names=model_names(config),
        num_devices=devices,
    )
    gpus = target_devices(CompileTarget.V100, num_devices=devices)
    shardings = placed(
        arguments, strategy.arguments, jax_mesh(strategy.mesh, gpus), names=step.names
    )
    jitted = sharded_step(step, arguments, strategy, devices=gpus)
    begin_s = time.perf_counter()
    traced = jitted.trace(*abstract_arrays(arguments, shardings))  # type: ignore[attr-defined]
    text = traced.lower(lowering_platforms=("cuda",)).compile(_OPTIONS).as_text()
    found = collectives(text)
    beside = [each.num_products for each in async_collectives(text) if each.kind == "all-to-all"]
    return {
        "strategy": _listed(decisions, halves=microbatches),
        "listed_mib": sum(
            graph.num_bytes(each.labels)
            for decision in decisions
            for each in decision.placements
            if each.stored == each.used == FULL
        )
        / 2**20,
        "compiled": count_collectives(found),
        "mib": {kind.value: size / 2**20 for kind, size in bytes_by_kind(found).items()},
        "with_products": sum(map(bool, beside)),
        "compile_s": time.perf_counter() - begin_s,
    }


def _listed(decisions: Sequence[OperatorDecision], *, halves: int) -> dict[str, int]:
    """Return the collectives of a strategy by kind."""
    counts = count_step_collectives(tuple(decisions))  # of two halves
    moved = counts[CollectiveKind.ALL_TO_ALL]
    counts[CollectiveKind.ALL_TO_ALL] = moved // 2 * halves
    return {str(kind): count for kind, count in counts.items()}


def _data(config: GptConfig, batch: int) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    if not config.patch:
        tokens = jax.ShapeDtypeStruct((batch, config.sequence), jnp.int32)
        return tokens, tokens
    side = int((config.sequence - 1) ** 0.5) * config.patch
    pictures = jax.ShapeDtypeStruct((batch, side, side, config.channels), jnp.uint8)
    return pictures, jax.ShapeDtypeStruct((batch,), jnp.int32)


if __name__ == "__main__":
    main()
