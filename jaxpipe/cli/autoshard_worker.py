"""Plan and compile a sharded step in this process: JSON in, JSON out.

`jaxpipe autoshard` starts it with devices enough: `python -m jaxpipe.cli.autoshard_worker`.
"""

import json
import math
import sys
import time
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import optax

from jaxpipe.autoshard.graph import trace_step
from jaxpipe.autoshard.hlo import (
    CompiledStep,
    Target,
    compile_step,
    count_collectives,
    target_devices,
)
from jaxpipe.autoshard.intra_op import GradientSums, Machine, SearchConfig, find_strategy
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
from models.alpa_gpt import AlpaGpt, step_flops
from models.gpt import Gpt

Speeds: TypeAlias = Mapping[str, Any]
"""One table of `speeds.toml`."""


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
    speeds = _speeds(target)
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
    flops = step_flops(config, batch=request["batch"], remat=request["remat"])
    compiled = compile_step(run, abstract_arrays(arguments, shardings), target)
    told = _told(strategy, compiled, flops=flops, dtype=config.compute_dtype, speeds=speeds)
    return told | {"solve_s": solve_s}


def _found(
    step: NamedStep, arguments: tuple[Any, ...], request: Mapping[str, Any], speeds: Speeds
) -> Strategy:
    """Search every mesh of so many devices; return what takes least, as predicted."""
    graph = trace_step(step.run, *arguments, names=step.names, result_names=step.result_names)
    machine = Machine(flops_per_s=speeds[request["dtype"]])
    sums = GradientSums.REDUCE_SCATTER if request["reduce_scatter"] else GradientSums.ALL_REDUCE
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
    strategy: Strategy, compiled: CompiledStep, *, flops: float, dtype: str, speeds: Speeds
) -> dict[str, Any]:
    devices = strategy.mesh.num_devices
    on_links = sum(
        each.ring_bytes(devices) / _bytes_per_s(each.group or devices, speeds)
        for each in compiled.collectives
    )
    in_memory = 2 * compiled.memory.arguments / speeds["memory"]
    seconds = flops / devices / speeds[dtype] + on_links + in_memory
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


def _speeds(target: Target) -> Speeds:
    """Return the speeds of a target; a step compiled for the CPU is predicted for V100s."""
    text = (files("jaxpipe.autoshard.hlo") / "targets" / "speeds.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)["v100" if target is Target.CPU else target.value]


def _mesh(dp: int, op: int, speeds: Speeds) -> MeshShape:
    def link(group: int) -> AxisLink:
        return AxisLink(bandwidth_bytes_per_s=_bytes_per_s(group, speeds))

    return MeshShape(dp=dp, op=op, dp_link=link(dp), op_link=link(op))


def _bytes_per_s(group: int, speeds: Speeds) -> float:
    """Return the rate of a ring through a group: that of its links together; nothing limits one."""
    if group == 1:
        return math.inf
    return speeds["link"] * speeds["links"].get(str(group), max(speeds["links"].values()))


if __name__ == "__main__":
    main()
