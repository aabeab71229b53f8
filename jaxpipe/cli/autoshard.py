"""`jaxpipe autoshard`: shard a training step over devices, compile it, execute it.

No such devices are needed: times are predicted, for the CPU target those of V100s. Executed steps
run on emulated devices; their times say nothing of others.
"""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from jaxpipe.cli.autoshard_request import (
    Compilation,
    ExecutedSteps,
    MegatronAxes,
    StepOptions,
    StrategySource,
    source_of_file,
    step_request,
)
from jaxpipe.errors import PlanError
from jaxpipe.run.folder.output_files import check_output

GIB = 2**30


def search(
    step: tyro.conf.OmitArgPrefixes[StepOptions],
    compilation: tyro.conf.OmitArgPrefixes[Compilation],
    *,
    mesh: int = 4,
    pins: Path | None = None,
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None,
    draw: bool = False,
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Search a strategy as Alpa's integer program does, compile it, and predict its time.

    Args:
        step: the training step.
        compilation: how it is compiled.
        mesh: the number of devices; both axes are searched.
        pins: a TOML or JSON file of shardings that the search must keep: a table `arguments` by
            path, a table `operators` by index.
        out: the JSON file to write the strategy to.
        draw: print the sharding of each argument, and the collectives of the strategy.
        json_: print one JSON object and nothing else.
    """
    if pins is not None:
        from jaxpipe.baselines.autoshard.strategy import read_pins

        read_pins(pins)  # refused before the process that traces the step starts
    source = StrategySource(mesh=mesh, pins=None if pins is None else str(pins))
    request = step_request(step, source, compilation)
    return _report(request, out=out, draw=draw, as_json=json_)


def megatron(
    step: tyro.conf.OmitArgPrefixes[StepOptions],
    compilation: tyro.conf.OmitArgPrefixes[Compilation],
    axes: tyro.conf.OmitArgPrefixes[MegatronAxes],
    *,
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None,
    draw: bool = False,
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Compile Megatron's strategy over `--dp` times `--op` devices, and predict its time.

    Args:
        step: the training step.
        compilation: how it is compiled.
        axes: the devices.
        out: the JSON file to write the strategy to.
        draw: print the sharding of each argument.
        json_: print one JSON object and nothing else.
    """
    request = step_request(step, axes.source(compilation), compilation)
    return _report(request, out=out, draw=draw, as_json=json_)


def compile_strategy(
    strategy: tyro.conf.Positional[Path],
    step: tyro.conf.OmitArgPrefixes[StepOptions],
    compilation: tyro.conf.OmitArgPrefixes[Compilation],
    *,
    draw: bool = False,
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Compile the strategy of a file, and predict its time.

    Args:
        strategy: a JSON file that `jaxpipe autoshard` or `jaxpipe compare` has written. One of
            `autoshard duplex` runs in two halves.
        step: the training step.
        compilation: how it is compiled.
        draw: print the sharding of each argument, and the collectives of the strategy.
        json_: print one JSON object and nothing else.
    """
    source, step = source_of_file(strategy, step, compilation)
    request = step_request(step, source, compilation)
    return _report(request, draw=draw, as_json=json_)


def execute_strategy(
    strategy: tyro.conf.Positional[Path],
    step: tyro.conf.OmitArgPrefixes[StepOptions],
    *,
    steps: int = 2,
    executor: Literal["spmd", "host"] = "spmd",
    seed: int = 0,
    reduce_scatter: bool = False,
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Execute the strategy of a file on emulated devices, and compare it with one device.

    Args:
        strategy: a JSON file that `jaxpipe autoshard` or `jaxpipe compare` has written. One of
            `autoshard duplex` runs in two halves.
        step: the training step.
        steps: the number of steps, with random data.
        executor: `spmd` runs one program, `host` a thread for each rank, with messages.
        seed: of the data.
        reduce_scatter: reduce-scatter gradients and update one shard per device (ZeRO-2).
        json_: print one JSON object and nothing else.
    """
    compilation = Compilation(reduce_scatter=reduce_scatter)
    source, step = source_of_file(strategy, step, compilation)
    execution = ExecutedSteps(execute=steps, executor=executor, seed=seed)
    request = step_request(step, source, compilation, execution)
    return _report(request, as_json=json_)


def _report(
    request: dict[str, Any], *, out: Path | None = None, draw: bool = False, as_json: bool
) -> int:
    """Compile the step in a process of its own, print what is known of it, write the strategy."""
    from jaxpipe.baselines.autoshard.hlo import run_python
    from jaxpipe.jaxpr import warn_if_untested

    check_output("--out", out)
    warn_if_untested()
    # A process of its own: JAX fixes the number of its host devices as it starts.
    answer = run_python(
        "jaxpipe.baselines.gpt.compile_worker", request, num_devices=request["mesh"]
    )
    if "error" in answer:
        raise PlanError(answer["error"])
    text, drawing = answer.pop("strategy_file"), answer.pop("drawing")
    if out is not None:
        out.write_text(text)
    if as_json:
        print(json.dumps({"truth": "simulated", **request, **answer}))
        return 0
    print("\n".join(_lines(answer, request["target"])))
    if draw:
        print(f"\n{drawing}")
    if out is not None:
        print(f"\nstrategy -> {out}\nnext: jaxpipe autoshard execute {out}   (with the same step)")
    return 0


def _lines(answer: dict[str, Any], target: str) -> list[str]:
    counts, num_bytes = answer["counts"], answer["collective_bytes"]
    kinds = ", ".join(f"{counts[name]} {name}" for name in counts if name != "num_comm")
    sizes = ", ".join(f"{size / GIB:.3f} GiB {kind}" for kind, size in num_bytes.items())
    memory = "of a CPU" if target == "cpu" else f"compiled for {target}"
    return [
        f"strategy      {answer['strategy']}",
        f"collectives   {counts['num_comm']}: {kinds}; {answer['overlapped']} overlap computation",
        f"bytes         {sizes or 'none'} (whole arrays)",
        f"arguments     {answer['arguments_bytes'] / GIB:.3f} GiB a device",
        f"peak          {answer['peak_bytes'] / GIB:.3f} GiB a device, {memory}",
        f"a step        {_predicted(answer, target)}",
        f"took          {answer['solve_s']:.1f} s to choose, "
        f"{answer['compile_s']:.1f} s to compile",
        *(_executed_lines(answer) if "executed_steps" in answer else []),
    ]


def _predicted(answer: dict[str, Any], target: str) -> str:
    if answer["is_duplex"]:
        return f"{answer['predicted_s']:.4g} s (simulated by the search, for its links)"
    device = "v100" if target == "cpu" else target
    return (
        f"{answer['predicted_s']:.4g} s, {answer['predicted_tflops']:.1f} TFLOPS "
        f"(simulated for {device})"
    )


def _executed_lines(answer: dict[str, Any]) -> list[str]:
    how = "a thread per rank" if answer["executor"] == "host" else "one program"
    return [
        f"executed      {answer['executed_steps']} steps on emulated devices, {how}: "
        f"{answer['step_s']:.3g} s a step (measured here)",
        f"loss          {answer['first_loss']:.6f} -> {answer['loss']:.6f}, on one device "
        f"{answer['one_device_loss']:.6f}; gradients differ by at most "
        f"{answer['gradient_difference']:.1e}",
    ]
