"""Requests of `jaxpipe autoshard`, and their checks: what goes together, and what does not.

::

    StepOptions ─┐
    strategy    ─┼─► request, in the types of JSON ──► `jaxpipe.baselines.gpt.compile_worker`
    Compilation ─┘
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jaxpipe.errors import ConfigError
from jaxpipe.foreign_file import read_regular

if TYPE_CHECKING:
    from jaxpipe.models import GptConfig

_LARGEST_MESH = 1024
"""Each device is emulated by threads of one process, which compiles for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """The training step that is sharded."""

    model: str = "alpa-6.7b"
    """A preset."""
    layers: int | None = None
    """The number of layers; default: that of the preset."""
    batch: int = 4
    """Sequences in a step, over all devices."""
    dtype: Literal["float16", "bfloat16", "float32"] = "float16"
    """The format of computation; the shorter ones keep a master copy in float32."""
    remat: bool = False
    """Rematerialize each layer in the backward."""
    microbatches: int = 1
    """Parts of the batch that run one after the other; gradients are added up, and reduced once. A
    strategy is searched for one of them."""
    duplex: bool = False
    """Run two microbatches together, collectives of one during products of the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compilation:
    """How a sharded step is compiled."""

    reduce_scatter: bool = False
    """Reduce-scatter gradients and update one shard per device (ZeRO-2)."""
    partitioner: Literal["jaxpipe", "gspmd"] = "jaxpipe"
    """`jaxpipe` inserts the collectives itself, `gspmd` lets XLA derive them from the shardings of
    arguments and results."""
    target: Literal["cpu", "v100", "h200"] = "cpu"
    """The device to compile for; GPUs need the extra `aot`, but no GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategySource:
    """Where a strategy comes from: axes of Megatron's, or a file, or else a search with `pins`."""

    mesh: int
    dp: int | None = None
    op: int | None = None
    zero: int = 0
    tables: str = "rows"
    strategy: str | None = None
    pins: str | None = None
    duplex_file: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronAxes:
    """The devices of Megatron's strategy: `--dp` times `--op`."""

    dp: int = 1
    """Devices that split the batch."""
    op: int = 1
    """Devices that split each operator."""
    zero: Literal[0, 1, 2, 3] = 0
    """What the devices of `--dp` shard: nothing (0), the optimizer's state (1), gradients too (2),
    parameters too (3)."""
    tables: Literal["rows", "columns"] = "rows"
    """How `--op` splits the tables of the embedding: that of tokens by rows, as Megatron does, or
    both by columns, whose collectives are those of Alpa in float32; for `alpa-` models."""

    def source(self, compilation: Compilation) -> StrategySource:
        """Return the strategy.

        Raises:
            ConfigError: gradients are sharded by two options.
        """
        if self.zero and compilation.reduce_scatter:
            raise ConfigError("`--reduce-scatter` is `--zero 2`: give one of them")
        return StrategySource(
            mesh=self.dp * self.op, dp=self.dp, op=self.op, zero=self.zero, tables=self.tables
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutedSteps:
    """The steps to execute on emulated devices; none are only compiled."""

    execute: int = 0
    executor: Literal["spmd", "host"] = "spmd"
    seed: int = 0


def step_request(
    step: StepOptions,
    source: StrategySource,
    compilation: Compilation,
    execution: ExecutedSteps | None = None,
) -> dict[str, Any]:
    """Return the checked request, in the types of JSON.

    Raises:
        ConfigError: options do not go together.
    """
    check_mesh(source.mesh)
    preset_of(step.model)
    check_dtype(step.dtype, compilation.target)
    _check_microbatches(step, compilation)
    samples = step.batch // step.microbatches
    if source.dp is not None and samples % source.dp:
        raise ConfigError(
            f"`--batch` must be a multiple of `--dp`: {samples} is not one of {source.dp}"
        )
    _check_tables(step, source, compilation)
    parts = (step, source, compilation, execution or ExecutedSteps())
    return {name: value for part in parts for name, value in asdict(part).items()}


def _check_tables(step: StepOptions, source: StrategySource, compilation: Compilation) -> None:
    if source.tables == "rows":
        return
    if not step.model.startswith("alpa-") or source.dp != 1:
        raise ConfigError(
            f"`--tables` {source.tables} is for `alpa-` models with `--dp 1`, not for {step.model} "
            f"with `--dp` {source.dp}; leave it out"
        )
    if compilation.partitioner == "gspmd":
        raise ConfigError(
            f"`--tables` {source.tables} needs jaxpipe's own partitioner, since it names an "
            "operator: leave `--partitioner gspmd` out"
        )


def check_dtype(dtype: str, target: str) -> None:
    """Check a format of computation before a process starts that traces the step.

    Raises:
        ConfigError: the speed of the target in this format is not known.
    """
    from jaxpipe.baselines.autoshard.hlo import CompileTarget, target_speeds

    known = target_speeds(CompileTarget(target)).products
    if dtype not in known:
        raise ConfigError(
            "`--dtype` must be a format whose speed on the target is known: "
            f"{', '.join(known)}, not {dtype}"
        )


def source_of_file(
    path: Path, step: StepOptions, compilation: Compilation
) -> tuple[StrategySource, StepOptions]:
    """Return the devices of a strategy file, and the step in the halves of a duplex.

    Raises:
        ConfigError: the step or its compilation does not suit a duplex.
        PlanError: the file cannot be read, or is damaged.
    """
    from jaxpipe.baselines.autoshard.duplex.found_file import MOST_BYTES, is_found_file, read_found
    from jaxpipe.baselines.autoshard.strategy import read_strategy

    try:
        content = read_regular(path, most_bytes=MOST_BYTES)
    except OSError:
        content = b""  # which `read_strategy` refuses by name
    if not is_found_file(content):
        return StrategySource(mesh=read_strategy(path).mesh.num_devices, strategy=str(path)), step
    num_devices = read_found(path).devices
    if step.microbatches not in (1, 2) or compilation.partitioner == "gspmd":
        raise ConfigError(
            f"`--microbatches` and `--partitioner` must be left out: {path} is a duplex of two "
            "halves"
        )
    if step.batch % (2 * num_devices):
        raise ConfigError(
            f"`--batch` must be a multiple of {2 * num_devices}, two halves for each of the "
            f"{num_devices} devices of {path}, not {step.batch}"
        )
    source = StrategySource(mesh=num_devices, strategy=str(path), duplex_file=True)
    return source, replace(step, microbatches=2, duplex=True)


def check_mesh(num_devices: int) -> None:
    """Refuse a number of devices that cannot be emulated.

    Raises:
        ConfigError: it is none, or too many.
    """
    if not 1 <= num_devices <= _LARGEST_MESH:
        raise ConfigError(f"`--mesh` must be from 1 to {_LARGEST_MESH} devices, not {num_devices}")


def preset_of(model: str) -> "GptConfig":
    """Return the configuration of `--model`, a preset of a GPT.

    Raises:
        ConfigError: it is no such preset.
    """
    from jaxpipe.models import gpt_preset

    try:
        return gpt_preset(model)
    except ValueError as error:
        # The catalogue calls a name that it does not know `preset`.
        words = f"`--model`: {error}".replace("`--model`: `preset`", "`--model`")
        raise ConfigError(words) from error


def _check_microbatches(step: StepOptions, compilation: Compilation) -> None:
    number = step.microbatches
    if number < 1 or step.batch % number:
        raise ConfigError(
            f"`--microbatches` must divide `--batch`: {number} does not divide {step.batch}"
        )
    if step.duplex and number != 2:
        raise ConfigError(f"`--duplex` has two halves: give `--microbatches 2`, not {number}")
    if number > 1 and compilation.partitioner == "gspmd":
        raise ConfigError(
            "`--microbatches` are run by jaxpipe's own partitioner: leave `--partitioner gspmd` out"
        )
