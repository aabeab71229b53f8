"""`jaxpipe autoshard`: shard a training step over devices, compile it and predict its time."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from jaxpipe.cli.duplex_search import DuplexRequest, search_duplex

GIB = 2**30
_OF_ILP = (
    *("mesh", "dp", "op", "strategy", "pins", "remat", "reduce_scatter", "zero", "microbatches"),
    *("duplex", "partitioner"),
)
"""Options that the duplex search would ignore."""
_LARGEST_MESH = 1024
"""Each device is emulated by threads of one process, which compiles for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoshardRequest:
    """The step to shard, the devices, and the target to compile for.

    Args:
        model: a preset.
        layers: the number of layers; default: that of the preset.
        mesh: the number of devices.
        batch: sequences in a step, over all devices.
        dtype: the format of computation; the shorter ones keep a master copy in float32.
        dp: devices that split the batch; with it or `--op`, Megatron's strategy is used.
        op: devices that split each operator; with neither, a strategy is searched.
        strategy: a JSON file with the strategy to use, as `--out` or `jaxpipe compare` writes it.
        pins: a TOML or JSON file of shardings that the search must keep: a table `arguments` by
            path, a table `operators` by index.
        remat: rematerialize each layer in the backward.
        reduce_scatter: reduce-scatter gradients and update one shard per device (ZeRO-2).
        zero: with `--dp`, what its devices shard: nothing (0), the optimizer's state (1), gradients
            too (2), parameters too (3).
        microbatches: parts of the batch that run one after the other; gradients are added up, and
            reduced once. A strategy is searched for one of them.
        duplex: run two microbatches together, collectives of one during products of the other.
        partitioner: `jaxpipe` inserts the collectives itself, `gspmd` lets XLA derive them from
            the shardings of arguments and results.
        target: the device to compile for; GPUs need the extra `aot`, but no GPU.
        search: `ilp` minimises the sum of compute and collectives and compiles what it finds;
            `duplex` lets two halves of the batch overlap (HiDup), and only predicts.
        links: for `duplex`, a published profile of collectives or a file of `jaxpipe profile
            --collectives`, which says how many devices there are.
        noise: for `duplex`, amplitude of random errors of the profile; 0.2 is 20 %.
        seed: for `duplex`, of the noise.
    """

    model: str = "alpa-6.7b"
    layers: int | None = None
    mesh: int = 4
    batch: int = 4
    dtype: Literal["float16", "bfloat16", "float32"] = "float16"
    dp: int | None = None
    op: int | None = None
    strategy: Path | None = None
    pins: Path | None = None
    remat: bool = False
    reduce_scatter: bool = False
    zero: Literal[0, 1, 2, 3] = 0
    microbatches: int = 1
    duplex: bool = False
    partitioner: Literal["jaxpipe", "gspmd"] = "jaxpipe"
    target: Literal["cpu", "v100", "h200"] = "cpu"
    search: Literal["ilp", "duplex"] = "ilp"
    links: str = "v100-1x8"
    noise: float = 0.0
    seed: int = 0


def autoshard(
    request: tyro.conf.OmitArgPrefixes[AutoshardRequest],
    *,
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None,
    draw: bool = False,
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Shard a training step, compile it, and report its collectives, memory and predicted time.

    Nothing is executed, so no such devices are needed. Times are predicted: for the CPU target
    those of V100s.

    Args:
        request: what to shard.
        out: the JSON file to write the strategy to, for `--strategy`.
        draw: print the sharding of each argument, and the collectives of a searched strategy.
        json_: print one JSON object and nothing else.
    """
    from jaxpipe.autoshard.hlo import run_python
    from jaxpipe.errors import PlanError
    from jaxpipe.jaxpr import warn_if_untested
    from jaxpipe.run.output_files import check_output

    if request.search == "duplex":
        return search_duplex(_duplex(request), out=out, draw=draw, as_json=json_)
    check_output("--out", out)
    warn_if_untested()
    # A process of its own: JAX fixes the number of its host devices as it starts.
    answer = run_python("jaxpipe.cli.autoshard_worker", _asked(request), num_devices=request.mesh)
    if "error" in answer:
        raise PlanError(answer["error"])
    text, drawing = answer.pop("strategy_file"), answer.pop("drawing")
    if out is not None:
        out.write_text(text)
    if json_:
        print(json.dumps({"truth": "simulated", **_asked(request), **answer}))
        return 0
    print("\n".join(_lines(answer, request.target)))
    if draw:
        print(f"\n{drawing}")
    if out is not None:
        print(f"\nstrategy -> {out}")
    return 0


def _duplex(request: AutoshardRequest) -> DuplexRequest:
    """Return the request of a duplex search.

    Raises:
        ConfigError: an option is for the other search.
    """
    from jaxpipe.errors import ConfigError

    defaults = AutoshardRequest()
    for name in _OF_ILP:
        if getattr(request, name) != getattr(defaults, name):
            raise ConfigError(
                f"`--{name.replace('_', '-')}` is for `--search ilp`: leave it out; the devices of "
                "`--search duplex` are those of `--links`"
            )
    return DuplexRequest(
        model=request.model,
        layers=request.layers,
        batch=request.batch,
        dtype=request.dtype,
        target=request.target,
        links=request.links,
        noise=request.noise,
        seed=request.seed,
    )


def _asked(request: AutoshardRequest) -> dict[str, Any]:
    """Return the checked request in the types of JSON."""
    from jaxpipe.errors import ConfigError

    given = request.dp is not None or request.op is not None
    if given and (request.strategy or request.pins):
        raise ConfigError(
            "`--dp` and `--op` decide the strategy: `--strategy` and `--pins` are for a strategy "
            "that is read or searched; leave one of them out"
        )
    if request.strategy and request.pins:
        raise ConfigError("`--pins` are for a search, `--strategy` needs none; leave one out")
    if not 1 <= request.mesh <= _LARGEST_MESH:
        raise ConfigError(f"`--mesh` must be from 1 to {_LARGEST_MESH} devices, not {request.mesh}")
    _check_microbatches(request)
    batch = request.batch // request.microbatches
    dp, op = _axes(request.mesh, batch, request.dp, request.op)
    files = {
        name: None if path is None else str(path)
        for name, path in (("strategy", request.strategy), ("pins", request.pins))
    }
    return asdict(replace(request, model=_known(request.model), dp=dp, op=op)) | files


def _check_microbatches(request: AutoshardRequest) -> None:
    from jaxpipe.errors import ConfigError

    number = request.microbatches
    if number < 1 or request.batch % number:
        raise ConfigError(
            f"`--microbatches` must divide `--batch`: {number} does not divide {request.batch}"
        )
    if request.duplex and number != 2:
        raise ConfigError(f"`--duplex` has two halves: give `--microbatches 2`, not {number}")
    if number > 1 and request.partitioner == "gspmd":
        raise ConfigError(
            "`--microbatches` are run by jaxpipe's own partitioner: leave `--partitioner gspmd` out"
        )
    if request.zero and request.dp is None and request.op is None:
        raise ConfigError(
            f"`--zero {request.zero}` is for a strategy by hand, a search decides itself; give "
            "`--dp` too"
        )
    if request.zero and request.reduce_scatter:
        raise ConfigError("`--reduce-scatter` is `--zero 2`: give one of them")


def _axes(mesh: int, batch: int, dp: int | None, op: int | None) -> tuple[int | None, int | None]:
    """Complete the axes by the number of devices; None where the mesh is searched or read.

    >>> _axes(8, 16, 2, None)
    (2, 4)
    """
    from jaxpipe.errors import ConfigError

    if dp is None and op is None:
        return None, None
    given = dp or op or 0  # 0 is refused below
    if given < 1 or mesh % given:
        raise ConfigError(f"`--dp` and `--op` must divide `--mesh` {mesh}, {given} does not")
    dp, op = dp or mesh // given, op or mesh // given
    if dp * op != mesh:
        raise ConfigError(f"`--dp` times `--op` must be `--mesh`: {dp} x {op} is not {mesh}")
    if batch % dp:
        raise ConfigError(f"`--batch` must be a multiple of `--dp`: {batch} is not one of {dp}")
    return dp, op


def _known(model: str) -> str:
    from jaxpipe.errors import ConfigError
    from jaxpipe.models import load_preset

    try:
        load_preset(model)
    except ValueError as error:
        raise ConfigError(f"`--model`: {error}") from error
    return model


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
        f"a step        {answer['predicted_s']:.4g} s, {answer['predicted_tflops']:.1f} TFLOPS "
        f"(simulated for {'v100' if target == 'cpu' else target})",
        f"took          {answer['solve_s']:.1f} s to choose, "
        f"{answer['compile_s']:.1f} s to compile",
    ]
