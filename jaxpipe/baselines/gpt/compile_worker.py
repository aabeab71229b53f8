"""Plan and compile a sharded step in this process: JSON in, JSON out.

`jaxpipe autoshard` starts it as `python -m jaxpipe.baselines.gpt.compile_worker`, because the
number of host devices is fixed once JAX runs in a process.
"""

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxpipe.baselines.autoshard.duplex.found_file import decisions_for, read_found
from jaxpipe.baselines.autoshard.duplex_step import realized
from jaxpipe.baselines.autoshard.hlo import (
    CompiledStep,
    CompileTarget,
    bytes_by_kind,
    compile_step,
    count_collectives,
    target_devices,
)
from jaxpipe.baselines.autoshard.intra_op import (
    GradientReduction,
    Machine,
    Priced,
    SearchConfig,
    find_strategy,
    price_strategy,
)
from jaxpipe.baselines.autoshard.spmd import (
    Combining,
    abstract_arrays,
    baseline,
    partitioned_step,
    placed,
    sharded_step,
)
from jaxpipe.baselines.autoshard.strategy import (
    Strategy,
    ZeroLevel,
    draw_collectives,
    draw_strategy,
    jax_mesh,
    read_pins,
    read_strategy,
    strategy_text,
)
from jaxpipe.baselines.gpt.alpa_gpt import step_flops, step_memory_bytes
from jaxpipe.baselines.gpt.execute_strategy import executed
from jaxpipe.baselines.gpt.model_names import model_names
from jaxpipe.baselines.gpt.model_sizes import duplex_graph
from jaxpipe.baselines.gpt.sharding_problem import ShardingProblem, problem_of
from jaxpipe.baselines.gpt.tables_by_columns import SPLIT_BY_COLUMNS, whole_embeddings
from jaxpipe.errors import PlanError, UserError


def main() -> None:
    """Answer the request; a mistake of the user is an answer too, `error`."""
    try:
        answer = _answer(json.loads(sys.stdin.read()))
    except UserError as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    problem = problem_of(request)
    started = time.perf_counter()
    strategy, priced = _chosen(problem)
    solve_s = time.perf_counter() - started
    compiled = _compiled(problem, strategy, CompileTarget(request["target"]))
    answer = _described(problem, strategy, compiled)
    if request["execute"]:
        answer |= executed(problem, strategy)
    return answer | {
        "solve_s": solve_s,
        "strategy_file": strategy_text(strategy),
        "drawing": _drawing(strategy, priced, problem.machine),
    }


def _chosen(problem: ShardingProblem) -> tuple[Strategy, Priced | None]:
    """Return the strategy by hand, of a file, or the one that a search finds."""
    request = problem.request
    if request["dp"] is not None:
        return _by_hand(problem), None
    if request["duplex_file"]:
        return _duplex(problem), None
    if request["strategy"] is not None:
        return _read(problem)
    priced = _searched(problem)
    return priced.strategy, priced


def _by_hand(problem: ShardingProblem) -> Strategy:
    """Return Megatron's strategy on the mesh of the request."""
    request, split = problem.request, problem.model.split
    arguments = problem.step.of_one_microbatch(problem.arguments)
    state, tokens, targets = arguments
    zero = [*ZeroLevel][2 if request["reduce_scatter"] else request["zero"]]
    mesh = problem.mesh(request["dp"], request["op"])
    if request["tables"] == "rows":
        return baseline(state, tokens.shape, targets.shape, mesh=mesh, split=split, zero=zero)
    split = {**split, **SPLIT_BY_COLUMNS}
    strategy = baseline(state, tokens.shape, targets.shape, mesh=mesh, split=split, zero=zero)
    return replace(
        strategy,
        name=f"{strategy.name}, tables by columns",
        operators=whole_embeddings(problem.step.run, arguments),
    )


def _duplex(problem: ShardingProblem) -> Strategy:
    """Return what the duplex search has found, as a strategy of this step."""
    request = problem.request
    searched = read_found(Path(request["strategy"]))
    graph = duplex_graph(problem.config, batch=request["batch"], dtype=request["dtype"])
    strategy = realized(
        problem.step,
        problem.arguments,
        graph=graph,
        decisions=decisions_for(graph, searched),
        names=model_names(problem.config),
        num_devices=searched.devices,
    )
    return replace(strategy, seconds=searched.seconds)


def _read(problem: ShardingProblem) -> tuple[Strategy, Priced | None]:
    """Return the strategy of a file, priced on the links of the target if a search found it."""
    read = read_strategy(Path(problem.request["strategy"]))
    # With the links of this target, not of the one for which the file was written.
    strategy = replace(read, mesh=problem.mesh(read.mesh.dp, read.mesh.op))
    # One by hand has no prediction, and names no operator or one: the others follow.
    if not strategy.operators or strategy.seconds is None:
        return strategy, None
    priced = price_strategy(problem.graph(), strategy, problem.machine)
    return strategy, priced


def _searched(problem: ShardingProblem) -> Priced:
    """Search every mesh of the requested number of devices; return the fastest, as predicted."""
    request, graph = problem.request, problem.graph()
    pins = None if request["pins"] is None else read_pins(Path(request["pins"]))
    reduction = (
        GradientReduction.REDUCE_SCATTER
        if request["reduce_scatter"]
        else GradientReduction.ALL_REDUCE
    )
    config = SearchConfig(force_batch_axis=True, gradient_reduction=reduction)
    candidates: list[Priced] = []
    refused: UserError | None = None
    for dp in range(1, request["mesh"] + 1):
        if request["mesh"] % dp or request["batch"] % dp:  # axes divide devices and batch
            continue
        mesh = problem.mesh(dp, request["mesh"] // dp)
        name = f"found on {mesh.dp} x {mesh.op}"
        try:
            best = find_strategy(graph, mesh, problem.machine, pins=pins, config=config, name=name)
        except PlanError as error:  # pins may suit only one of the meshes
            refused = error
            continue
        candidates.append(best.priced)
    if not candidates and refused is not None:
        raise refused
    return min(candidates, key=lambda priced: priced.strategy.seconds or 0.0)


def _compiled(problem: ShardingProblem, strategy: Strategy, target: CompileTarget) -> CompiledStep:
    step, arguments = problem.step, problem.arguments
    devices = target_devices(target, num_devices=strategy.mesh.num_devices)
    shardings = placed(
        arguments, strategy.arguments, jax_mesh(strategy.mesh, devices), names=step.names
    )
    if problem.request["partitioner"] == "gspmd":
        run = partitioned_step(step, arguments, strategy, devices=devices)
    else:
        combining = Combining(by_layout=problem.request["reduce_scatter"])
        run = sharded_step(step, arguments, strategy, devices=devices, combining=combining)
    return compile_step(run, abstract_arrays(arguments, shardings), target)


def _drawing(strategy: Strategy, priced: Priced | None, machine: Machine) -> str:
    if priced is None or not priced.collectives:
        return draw_strategy(strategy)
    drawn = draw_collectives(priced.collectives, strategy.mesh, launch_s=machine.launch_s)
    return f"{draw_strategy(strategy)}\n\n{drawn}"


def _described(
    problem: ShardingProblem, strategy: Strategy, compiled: CompiledStep
) -> dict[str, Any]:
    config, request, speeds = problem.config, problem.request, problem.speeds
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
    if request["duplex_file"] and strategy.seconds is not None:
        # Of the search, which knows halves, experts and the links it was made for.
        seconds = strategy.seconds
    return {
        "strategy": strategy.name,
        "is_duplex": request["duplex_file"],
        "dp": strategy.mesh.dp,
        "op": strategy.mesh.op,
        "counts": count_collectives(compiled.collectives),
        "collective_bytes": bytes_by_kind(compiled.collectives),
        "arguments_bytes": compiled.memory.arguments,
        "temporary_bytes": compiled.memory.temporaries,
        "peak_bytes": compiled.memory.peak,
        "overlapped": sum(collective.num_beside > 0 for collective in compiled.asynchronous),
        "compile_s": compiled.compile_s,
        "predicted_s": seconds,
        "predicted_tflops": flops / seconds / 1e12,
    }


if __name__ == "__main__":
    main()
