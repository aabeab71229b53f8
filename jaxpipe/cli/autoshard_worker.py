"""Plan and compile a sharded step in this process: JSON in, JSON out.

`jaxpipe autoshard` starts it as `python -m jaxpipe.cli.autoshard_worker`, because the number of
host devices is fixed once JAX runs in a process.
"""

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxpipe.autoshard.graph import Graph, trace_step
from jaxpipe.autoshard.hlo import (
    CompiledStep,
    Target,
    TargetSpeeds,
    bytes_by_kind,
    compile_step,
    count_collectives,
    target_devices,
    target_speeds,
)
from jaxpipe.autoshard.intra_op import (
    GradientReduction,
    Machine,
    Priced,
    SearchConfig,
    find_strategy,
    price_strategy,
)
from jaxpipe.autoshard.spmd import (
    NamedStep,
    abstract_arrays,
    baseline,
    initial_state,
    partitioned_step,
    placed,
    sharded_step,
    train_step,
)
from jaxpipe.autoshard.strategy import (
    AxisLink,
    MeshShape,
    Strategy,
    ZeroLevel,
    draw_collectives,
    draw_strategy,
    jax_mesh,
    read_pins,
    read_strategy,
    strategy_text,
)
from jaxpipe.errors import ConfigError, PlanError, UserError
from jaxpipe.models import GptConfig, load_preset
from jaxpipe.models.alpa_gpt import AlpaGpt, step_flops, step_memory_bytes
from jaxpipe.models.gpt import Gpt


def main() -> None:
    """Answer the request; a mistake of the user is an answer too, `error`."""
    try:
        answer = _answer(json.loads(sys.stdin.read()))
    except UserError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    """The step to shard, and what the request says of it."""

    step: NamedStep
    arguments: tuple[Any, ...]
    request: Mapping[str, Any]
    speeds: TargetSpeeds

    @property
    def machine(self) -> Machine:
        """The speed of a device in the dtype of the request."""
        return Machine(flops_per_s=self.speeds.products[self.request["dtype"]])

    def graph(self) -> Graph:
        """Trace the step of one microbatch."""
        names, result_names = self.step.names, self.step.result_names
        arguments = self.step.of_one_microbatch(self.arguments)
        return trace_step(self.step.run, *arguments, names=names, result_names=result_names)


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    target = Target(request["target"])
    speeds = target_speeds(target)
    if request["dtype"] not in speeds.products:
        raise ConfigError(
            f"`--dtype` must be a format whose speed on the target is known: "
            f"{', '.join(speeds.products)}, not {request['dtype']}"
        )
    fields = {**load_preset(request["model"]), "compute_dtype": request["dtype"]}
    if request["layers"] is not None:
        fields["num_layers"] = request["layers"]
    config = GptConfig(**fields)
    gpt = AlpaGpt(config) if request["model"].startswith("alpa-") else Gpt(config)
    optimizer = optax.adam(1e-4)
    # Shapes alone: billions of parameters would not fit here, and are never computed.
    state = jax.eval_shape(
        lambda key: initial_state(gpt, optimizer, key, dtype=config.compute_dtype),
        jax.random.key(0),
    )
    tokens = jax.ShapeDtypeStruct((request["batch"], config.sequence), jnp.int32)
    whole = train_step(gpt, optimizer, remat=request["remat"], microbatches=request["microbatches"])
    step = NamedStep(
        run=lambda *trees: whole(*trees)[0],
        names=("state", "tokens", "targets"),
        result_names=("state",),
        microbatches=request["microbatches"],
        duplex=request["duplex"],
    )
    problem = _Problem(step=step, arguments=(state, tokens, tokens), request=request, speeds=speeds)
    started = time.perf_counter()
    priced: Priced | None = None
    if request["dp"] is not None:
        strategy = _by_hand(problem, split=gpt.split)
    elif request["strategy"] is not None:
        strategy, priced = _read(problem)
    else:
        priced = _searched(problem)
        strategy = priced.strategy
    solve_s = time.perf_counter() - started
    compiled = _compiled(problem, strategy, target)
    answer = _described(strategy, compiled, config=config, request=request, speeds=speeds)
    return answer | {
        "solve_s": solve_s,
        "strategy_file": strategy_text(strategy),
        "drawing": _drawing(strategy, priced, problem.machine),
    }


def _by_hand(problem: _Problem, *, split: Mapping[str, int]) -> Strategy:
    """Return Megatron's strategy on the mesh of the request."""
    request = problem.request
    state, tokens, _ = problem.step.of_one_microbatch(problem.arguments)
    zero = [*ZeroLevel][2 if request["reduce_scatter"] else request["zero"]]
    mesh = _mesh(request["dp"], request["op"], problem.speeds)
    return baseline(state, tokens.shape, mesh=mesh, split=split, zero=zero)


def _read(problem: _Problem) -> tuple[Strategy, Priced | None]:
    """Return the strategy of a file, priced on the links of the target if it names operators."""
    path, num_devices = problem.request["strategy"], problem.request["mesh"]
    read = read_strategy(Path(path))
    if read.mesh.num_devices != num_devices:
        raise ConfigError(
            f"`--mesh` must be the {read.mesh.dp} x {read.mesh.op} devices of the strategy {path}, "
            f"not {num_devices}"
        )
    # With the links of this target, not of the one for which the file was written.
    strategy = replace(read, mesh=_mesh(read.mesh.dp, read.mesh.op, problem.speeds))
    if not strategy.operators:
        return strategy, None
    priced = price_strategy(problem.graph(), strategy, problem.machine)
    return strategy, priced


def _searched(problem: _Problem) -> Priced:
    """Search every mesh of the requested number of devices; return the fastest, as predicted."""
    request, graph = problem.request, problem.graph()
    pins = None if request["pins"] is None else read_pins(Path(request["pins"]))
    reduction = (
        GradientReduction.REDUCE_SCATTER
        if request["reduce_scatter"]
        else GradientReduction.ALL_REDUCE
    )
    config = SearchConfig(force_batch_axis=True, gradient_reduction=reduction)
    found: list[Priced] = []
    refused: UserError | None = None
    for dp in range(1, request["mesh"] + 1):
        if request["mesh"] % dp or request["batch"] % dp:  # axes divide devices and batch
            continue
        mesh = _mesh(dp, request["mesh"] // dp, problem.speeds)
        name = f"found on {mesh.dp} x {mesh.op}"
        try:
            best = find_strategy(graph, mesh, problem.machine, pins=pins, config=config, name=name)
        except PlanError as error:  # pins may suit only one of the meshes
            refused = error
            continue
        found.append(best.priced)
    if not found and refused is not None:
        raise refused
    return min(found, key=lambda each: each.strategy.seconds or 0.0)


def _compiled(problem: _Problem, strategy: Strategy, target: Target) -> CompiledStep:
    step, arguments = problem.step, problem.arguments
    devices = target_devices(target, num_devices=strategy.mesh.num_devices)
    shardings = placed(
        arguments, strategy.arguments, jax_mesh(strategy.mesh, devices), names=step.names
    )
    if problem.request["partitioner"] == "gspmd":
        run = partitioned_step(step, arguments, strategy, devices=devices)
    else:
        by_layout = problem.request["reduce_scatter"]
        run = sharded_step(step, arguments, strategy, devices=devices, by_layout=by_layout)
    return compile_step(run, abstract_arrays(arguments, shardings), target)


def _drawing(strategy: Strategy, priced: Priced | None, machine: Machine) -> str:
    if priced is None or not priced.collectives:
        return draw_strategy(strategy)
    drawn = draw_collectives(priced.collectives, strategy.mesh, launch_s=machine.launch_s)
    return f"{draw_strategy(strategy)}\n\n{drawn}"


def _described(
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
        reduce_scatter=request["reduce_scatter"] or request["zero"] > 1,
    )
    seconds = (
        # Without overlap: compute, memory and collectives follow each other.
        flops / mesh.num_devices / speeds.products[config.compute_dtype]
        + memory_bytes / speeds.memory_bytes_per_s
        + speeds.on_rings_s(compiled.collectives, num_devices=mesh.num_devices)
    )
    return {
        "strategy": strategy.name,
        "dp": strategy.mesh.dp,
        "op": strategy.mesh.op,
        "counts": count_collectives(compiled.collectives),
        "collective_bytes": bytes_by_kind(compiled.collectives),
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
