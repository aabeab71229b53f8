"""`jaxpipe autoshard`: shard a training step over devices, compile it and predict its time."""

import json
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxpipe.cli.autoshard_request import (
    AutoshardRequest,
    duplex_request,
    staged_request,
    step_request,
)
from jaxpipe.cli.duplex_search import search_duplex
from jaxpipe.cli.staged_search import search_staged

GIB = 2**30


def autoshard(
    request: tyro.conf.OmitArgPrefixes[AutoshardRequest],
    *,
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None,
    draw: bool = False,
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Shard a training step, compile it, and report its collectives, memory and predicted time.

    No such devices are needed: times are predicted, for the CPU target those of V100s. With
    `--execute` emulated devices run the step; their times say nothing of others.

    Args:
        request: what to shard.
        out: the JSON file to write the strategy to, for `--strategy`.
        draw: print the sharding of each argument, and the collectives of a searched strategy.
        json_: print one JSON object and nothing else.
    """
    from jaxpipe.baselines.autoshard.hlo import run_python
    from jaxpipe.errors import PlanError
    from jaxpipe.jaxpr import warn_if_untested
    from jaxpipe.run.output_files import check_output

    if request.search == "duplex":
        return search_duplex(duplex_request(request), out=out, draw=draw, as_json=json_)
    if request.stages == "auto":
        return search_staged(staged_request(request), out=out, draw=draw, as_json=json_)
    check_output("--out", out)
    warn_if_untested()
    # A process of its own: JAX fixes the number of its host devices as it starts.
    asked = step_request(request)
    answer = run_python("jaxpipe.cli.autoshard_worker", asked, num_devices=asked["mesh"])
    if "error" in answer:
        raise PlanError(answer["error"])
    text, drawing = answer.pop("strategy_file"), answer.pop("drawing")
    if out is not None:
        out.write_text(text)
    if json_:
        print(json.dumps({"truth": "simulated", **asked, **answer}))
        return 0
    print("\n".join(_lines(answer, request.target)))
    if draw:
        print(f"\n{drawing}")
    if out is not None:
        print(f"\nstrategy -> {out}")
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
