"""`jaxpipe autoshard`: how one program on all devices would be sharded, and what that takes."""

import json
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal

import tyro

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoshardRequest:
    """What is sharded, over how many devices, and for which of them it is compiled.

    Args:
        model: a preset.
        layers: how many layers it has, if not those of the preset.
        mesh: how many devices there are.
        batch: sequences in a step, over all devices.
        dtype: what is computed in; the shorter ones keep a master copy in float32.
        dp: devices that split the batch; with it or `--op`, Megatron's strategy is taken.
        op: devices that split each operator; with neither, a strategy is searched.
        remat: compute each layer again in the backward.
        reduce_scatter: end the sums of gradients by reduce-scatters, and update parts (ZeRO-2).
        target: what is compiled for; GPUs need the extra `aot`, but no GPU.
    """

    model: str = "alpa-6.7b"
    layers: int | None = None
    mesh: int = 4
    batch: int = 4
    dtype: Literal["float16", "bfloat16", "float32"] = "float16"
    dp: int | None = None
    op: int | None = None
    remat: bool = False
    reduce_scatter: bool = False
    target: Literal["cpu", "v100", "h200"] = "cpu"


def autoshard(
    request: tyro.conf.OmitArgPrefixes[AutoshardRequest],
    *,
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Shard a training step, compile it, and tell its collectives, memory and predicted time.

    Nothing is run, so the devices need not be there. Times are predicted: for the CPU target those
    of V100s.

    Args:
        request: what is to be sharded.
        json_: print one JSON object and nothing else.
    """
    from jaxpipe.autoshard.hlo import run_python

    dp, op = _axes(request.mesh, request.batch, request.dp, request.op)
    asked = asdict(replace(request, model=_known(request.model), dp=dp, op=op))
    told = run_python("jaxpipe.cli.autoshard_worker", asked, num_devices=request.mesh)
    if json_:
        print(json.dumps({"truth": "simulated", **asked, **told}))
        return 0
    print("\n".join(_lines(told, request.target)))
    return 0


def _axes(mesh: int, batch: int, dp: int | None, op: int | None) -> tuple[int | None, int | None]:
    """Complete the axes by the number of devices; none are given where the mesh is searched.

    >>> _axes(8, 16, 2, None)
    (2, 4)
    """
    from jaxpipe.errors import ConfigError

    if dp is None and op is None:
        return None, None
    given = dp or op or 0
    if mesh < 1 or given < 1 or mesh % given:
        raise ConfigError(f"`--dp` and `--op` must divide `--mesh` {mesh}, {given} does not")
    dp, op = dp or mesh // given, op or mesh // given
    if dp * op != mesh:
        raise ConfigError(f"`--dp` times `--op` must be `--mesh`: {dp} x {op} is not {mesh}")
    if batch % dp:
        raise ConfigError(f"`--batch` must be a multiple of `--dp`: {batch} is not one of {dp}")
    return dp, op


def _known(model: str) -> str:
    from jaxpipe.errors import ConfigError
    from models import load_preset

    try:
        load_preset(model)
    except ValueError as error:
        raise ConfigError(f"`--model`: {error}") from error
    return model


def _lines(told: dict[str, Any], target: str) -> list[str]:
    counts = told["counts"]
    kinds = ", ".join(f"{counts[name]} {name}" for name in counts if name != "num_comm")
    memory = "of a CPU" if target == "cpu" else f"compiled for {target}"
    return [
        f"strategy      {told['strategy']}",
        f"collectives   {counts['num_comm']}: {kinds}; {told['overlapped']} beside computation",
        f"arguments     {told['arguments_bytes'] / GIB:.3f} GiB a device",
        f"peak          {told['peak_bytes'] / GIB:.3f} GiB a device, {memory}",
        f"a step        {told['predicted_s']:.4g} s, {told['predicted_tflops']:.1f} TFLOPS "
        f"(simulated for {'v100' if target == 'cpu' else target})",
        f"took          {told['solve_s']:.1f} s to choose, {told['compile_s']:.1f} s to compile",
    ]
