"""`jaxpipe autoshard`: shard one SPMD program, compile it, and print its cost."""

import json
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal

import tyro

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoshardRequest:
    """The model, the number of devices, and the target of the compiler.

    Args:
        model: a preset.
        layers: number of layers, by default that of the preset.
        mesh: number of devices.
        batch: sequences in a step, over all devices.
        dtype: compute dtype; 16-bit ones keep a float32 master copy of the parameters.
        dp: data-parallel devices; with it or `--op`, the strategy is Megatron's.
        op: tensor-parallel devices; without both, a strategy is searched.
        remat: rematerialise each layer in the backward.
        reduce_scatter: reduce-scatter gradients and shard the update (ZeRO-2).
        target: the compile target; GPU targets need the extra `aot`, but no GPU.
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
    """Shard a training step, compile it, and print its collectives, memory and predicted time.

    Nothing is run, and no device is needed. Times are predicted; for the CPU target they are those
    of V100s.

    Args:
        request: the model and the devices.
        json_: print one JSON object and nothing else.
    """
    from jaxpipe.autoshard.hlo import run_python

    dp, op = _axes(request.mesh, request.batch, request.dp, request.op)
    request_fields = asdict(replace(request, model=_known(request.model), dp=dp, op=op))
    answer = run_python("jaxpipe.cli.autoshard_worker", request_fields, num_devices=request.mesh)
    if json_:
        print(json.dumps({"truth": "simulated", **request_fields, **answer}))
        return 0
    print("\n".join(_lines(answer, request.target)))
    return 0


def _axes(mesh: int, batch: int, dp: int | None, op: int | None) -> tuple[int | None, int | None]:
    """Complete the axes from the number of devices; both are None if the mesh is searched.

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


def _lines(answer: dict[str, Any], target: str) -> list[str]:
    counts = answer["counts"]
    kinds = ", ".join(f"{counts[name]} {name}" for name in counts if name != "num_comm")
    memory = "of a CPU" if target == "cpu" else f"compiled for {target}"
    return [
        f"strategy      {answer['strategy']}",
        f"collectives   {counts['num_comm']}: {kinds}; {answer['overlapped']} overlapped",
        f"arguments     {answer['arguments_bytes'] / GIB:.3f} GiB per device",
        f"peak          {answer['peak_bytes'] / GIB:.3f} GiB per device, {memory}",
        f"a step        {answer['predicted_s']:.4g} s, {answer['predicted_tflops']:.1f} TFLOPS "
        f"(simulated for {'v100' if target == 'cpu' else target})",
        f"search        {answer['solve_s']:.1f} s, compilation {answer['compile_s']:.1f} s",
    ]
