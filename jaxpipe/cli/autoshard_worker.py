"""Plan and compile a sharded step in this process: JSON in, JSON out.

`jaxpipe autoshard` starts it with devices enough: `python -m jaxpipe.cli.autoshard_worker`.
"""

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxpipe.autoshard.graph import trace_step
from jaxpipe.autoshard.hlo import (
    CompiledStep,
    Target,
    TargetSpeeds,
    compile_step,
    count_collectives,
    target_devices,
    target_speeds,
)
from jaxpipe.autoshard.intra_op import GradientReduction, Machine, SearchConfig, find_strategy
from jaxpipe.autoshard.spmd import (
    NamedStep,
    abstract_arrays,
    baseline,
    initial_state,
    placed,
    sharded_step,
    train_step,
)
from jaxpipe.autoshard.strategy import AxisLink, MeshShape, Strategy, ZeroLevel, jax_mesh
from models import GptConfig, load_preset
from models.alpa_gpt import AlpaGpt, step_flops, step_memory_bytes
from models.gpt import Gpt


def main() -> None:
    """Answer the request."""
    print(json.dumps(_answer(json.loads(sys.stdin.read()))))


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    target = Target(request["target"])
    fields = {**load_preset(request["model"]), "compute_dtype": request["dtype"]}
    if request["layers"] is not None:
        fields["num_layers"] = request["layers"]
    config = GptConfig(**fields)
    gpt = AlpaGpt(config) if request["model"].startswith("alpa-") else Gpt(config)
    optimizer = optax.adam(1e-4)
    state = jax.eval_shape(
        lambda key: initial_state(gpt, optimizer, key, dtype=config.compute_dtype),
        jax.random.key(0),
    )
    tokens = jax.ShapeDtypeStruct((request["batch"], config.sequence), jnp.int32)
    arguments = (state, tokens, tokens)
    whole = train_step(gpt, optimizer, remat=request["remat"])
    step = NamedStep(
        run=lambda *trees: whole(*trees)[0],
        names=("state", "tokens", "targets"),
        result_names=("state",),
    )
    speeds = target_speeds(target)
    started = time.perf_counter()
    if request["dp"] is None:
        strategy = _found(step, arguments, request, speeds)
    else:
        zero = ZeroLevel.GRADIENTS if request["reduce_scatter"] else ZeroLevel.NONE
        mesh = _mesh(request["dp"], request["op"], speeds)
        strategy = baseline(state, tokens.shape, mesh=mesh, split=gpt.split, zero=zero)
    solve_s = time.perf_counter() - started
    devices = target_devices(target, num_devices=strategy.mesh.num_devices)
    shardings = placed(
        arguments, strategy.arguments, jax_mesh(strategy.mesh, devices), names=step.names
    )
    run = sharded_step(
        step, arguments, strategy, devices=devices, by_layout=request["reduce_scatter"]
    )
    compiled = compile_step(run, abstract_arrays(arguments, shardings), target)
    told = _told(strategy, compiled, config=config, request=request, speeds=speeds)
    return told | {"solve_s": solve_s}


def _found(
    step: NamedStep, arguments: tuple[Any, ...], request: Mapping[str, Any], speeds: TargetSpeeds
) -> Strategy:
    """Search every mesh of `num_devices`; return the one with the least predicted time."""
    graph = trace_step(step.run, *arguments, names=step.names, result_names=step.result_names)
    machine = Machine(flops_per_s=speeds.products[request["dtype"]])
    sums = (
        GradientReduction.REDUCE_SCATTER
        if request["reduce_scatter"]
        else GradientReduction.ALL_REDUCE
    )
    found = [
        find_strategy(
            graph,
            _mesh(dp, request["mesh"] // dp, speeds),
            machine,
            config=SearchConfig(force_batch_axis=True, gradient_sums=sums),
            name=f"found on {dp} x {request['mesh'] // dp}",
        ).priced.strategy
        for dp in range(1, request["mesh"] + 1)
        if request["mesh"] % dp == 0 and request["batch"] % dp == 0
    ]
    return min(found, key=lambda each: each.seconds or 0.0)


def _told(
    strategy: Strategy,
    compiled: CompiledStep,
    *,
    config: GptConfig,
    request: Mapping[str, Any],
    speeds: TargetSpeeds,
) -> dict[str, Any]:
    mesh, batch, remat = strategy.mesh, request["batch"], request["remat"]
    flops = step_flops(config, batch=batch, remat=remat)
    memory_bytes = step_memory_bytes(
        config,
        batch=batch,
        dp=mesh.dp,
        op=mesh.op,
        remat=remat,
        reduce_scatter=request["reduce_scatter"],
    )
    seconds = (
        flops / mesh.num_devices / speeds.products[config.compute_dtype]
        + memory_bytes / speeds.memory_bytes_per_s
        + speeds.on_rings_s(compiled.collectives, num_devices=mesh.num_devices)
    )
    return {
        "strategy": strategy.name,
        "dp": strategy.mesh.dp,
        "op": strategy.mesh.op,
        "counts": count_collectives(compiled.collectives),
        "arguments_bytes": compiled.memory.arguments,
        "temporary_bytes": compiled.memory.temporaries,
        "peak_bytes": compiled.memory.peak,
        "overlapped": sum(each.num_beside > 0 for each in compiled.asynchronous),
        "compile_s": compiled.compile_s,
        "predicted_s": seconds,
        "predicted_tflops": flops / seconds / 1e12,
    }


def _mesh(dp: int, op: int, speeds: TargetSpeeds) -> MeshShape:
    def link(group: int) -> AxisLink:
        return AxisLink(bandwidth_bytes_per_s=speeds.ring_bytes_per_s(group))

    return MeshShape(dp=dp, op=op, dp_link=link(dp), op_link=link(op))


if __name__ == "__main__":
    main()
