"""The request of `jaxpipe autoshard`, and its checks: what goes together, and what does not."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from jaxpipe.cli.duplex_search import DuplexRequest

_OF_ILP = (
    *("mesh", "dp", "op", "strategy", "pins", "remat", "reduce_scatter", "zero", "microbatches"),
    *("duplex", "partitioner", "execute", "executor", "plan"),
)
"""Options that the duplex search would ignore."""
_OF_ONE_STAGE = (
    *("search", "dp", "op", "strategy", "pins", "reduce_scatter", "zero", "microbatches"),
    *("duplex", "partitioner", "execute", "executor"),
)
"""Options that a search of stages would ignore."""
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
            One of `--search duplex` says on how many devices, and runs in two halves.
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
        seed: for `duplex`, of the noise; with `--execute`, of the data.
        execute: steps to run on emulated devices of this host, with random data, and to compare
            with one device.
        executor: `spmd` runs one program, `host` a thread for each rank, with messages.
        stages: `auto` divides the layers of an `alpa-` model into stages on submeshes of the
            devices, in hosts of the target, each sharded as is fastest (Alpa's inter-operator
            search), and only predicts.
        plan: for `--stages auto`, a plan file to write, which `jaxpipe train` executes with a rank
            for each stage, on a mesh of its own: stages lie inside hosts.
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
    execute: int = 0
    executor: Literal["spmd", "host"] = "spmd"
    stages: Literal["one", "auto"] = "one"
    plan: Path | None = None


def duplex_request(request: AutoshardRequest) -> DuplexRequest:
    """Return the request of a duplex search.

    Raises:
        ConfigError: an option is for the other search.
    """
    _refuse(
        request,
        _OF_ILP,
        "is for `--search ilp`: leave it out; the devices of `--search duplex` are those of "
        "`--links`",
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


def staged_request(request: AutoshardRequest) -> dict[str, Any]:
    """Return the checked request of a search of stages.

    Raises:
        ConfigError: an option is for one stage, or the model is not Alpa's.
    """
    from jaxpipe.errors import ConfigError

    _refuse(request, _OF_ONE_STAGE, "is for one stage: leave it out, `--stages auto` decides")
    _check_mesh(request)
    if request.batch < 1:
        raise ConfigError(f"`--batch` must be at least 1, is {request.batch}")
    if not _known(request.model).startswith("alpa-"):
        raise ConfigError(
            f"`--stages auto` has costs for the `alpa-` models, not for {request.model}; for yours "
            "use `jaxpipe plan --objective alpa`"
        )
    plan = None if request.plan is None else str(request.plan)
    return {**asdict(replace(request, strategy=None, pins=None)), "plan": plan}


def _refuse(request: AutoshardRequest, names: tuple[str, ...], why: str) -> None:
    """Refuse options that are not at their defaults.

    Raises:
        ConfigError: one is not.
    """
    from jaxpipe.errors import ConfigError

    defaults = AutoshardRequest()
    for name in names:
        if getattr(request, name) != getattr(defaults, name):
            raise ConfigError(f"`--{name.replace('_', '-')}` {why}")


def _check_mesh(request: AutoshardRequest) -> None:
    from jaxpipe.errors import ConfigError

    if not 1 <= request.mesh <= _LARGEST_MESH:
        raise ConfigError(f"`--mesh` must be from 1 to {_LARGEST_MESH} devices, not {request.mesh}")


def step_request(request: AutoshardRequest) -> dict[str, Any]:
    """Return the checked request in the types of JSON."""
    from jaxpipe.errors import ConfigError

    if request.plan is not None:
        raise ConfigError("`--plan` is for the stages of `--stages auto`; give both, or neither")
    given = request.dp is not None or request.op is not None
    if given and (request.strategy or request.pins):
        raise ConfigError(
            "`--dp` and `--op` decide the strategy: `--strategy` and `--pins` are for a strategy "
            "that is read or searched; leave one of them out"
        )
    if request.strategy and request.pins:
        raise ConfigError("`--pins` are for a search, `--strategy` needs none; leave one out")
    _check_mesh(request)
    request, is_duplex = _of_duplex_file(request)
    _check_microbatches(request)
    _check_execution(request)
    batch = request.batch // request.microbatches
    dp, op = _axes(request.mesh, batch, request.dp, request.op)
    files = {
        name: None if path is None else str(path)
        for name, path in (("strategy", request.strategy), ("pins", request.pins))
    }
    known = asdict(replace(request, model=_known(request.model), dp=dp, op=op))
    return {**known, **files, "duplex_file": is_duplex}


def _of_duplex_file(request: AutoshardRequest) -> tuple[AutoshardRequest, bool]:
    """Return the request with the devices and halves of a file of the duplex search, if it is one.

    Raises:
        ConfigError: the request asks for something else.
        PlanError: the file is damaged.
    """
    from jaxpipe.baselines.autoshard.duplex.found_file import is_found_file, read_found
    from jaxpipe.errors import ConfigError

    path = request.strategy
    if path is None or not path.is_file() or not is_found_file(path.read_bytes()):
        return request, False
    found = read_found(path)
    defaults = AutoshardRequest()
    if request.mesh not in (defaults.mesh, found.devices):
        raise ConfigError(
            f"`--mesh` must be the {found.devices} devices of the strategy {path}, not "
            f"{request.mesh}; leave it out"
        )
    if request.microbatches not in (1, 2) or request.partitioner == "gspmd":
        raise ConfigError(
            f"`--strategy` {path} is a duplex of two halves: leave `--microbatches` and "
            "`--partitioner` out"
        )
    if request.batch % (2 * found.devices):
        raise ConfigError(
            f"`--batch` must be a multiple of {2 * found.devices}, two halves for each of the "
            f"{found.devices} devices of {path}, not {request.batch}"
        )
    return replace(request, mesh=found.devices, microbatches=2, duplex=True), True


def _check_execution(request: AutoshardRequest) -> None:
    from jaxpipe.errors import ConfigError

    if request.execute < 0:
        raise ConfigError(f"`--execute` must be at least 0 steps, is {request.execute}")
    if request.execute and request.target != "cpu":
        raise ConfigError(
            f"`--execute` runs on emulated devices of this host: leave `--target {request.target}` "
            "out"
        )
    if request.executor == "host" and not request.execute:
        raise ConfigError("`--executor host` is for steps that run: give `--execute 3` too")


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
    from jaxpipe.models import gpt_preset

    try:
        gpt_preset(model)
    except ValueError as error:
        raise ConfigError(f"`--model`: {error}") from error
    return model
