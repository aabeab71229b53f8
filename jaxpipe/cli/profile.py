"""`jaxpipe profile`: measures the parts of a model on a device, or collectives between ranks."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from jaxpipe.runtime.config import MatmulPrecision
from jaxpipe.schedule import Remat

if TYPE_CHECKING:  # these import jax, which `--help` can do without
    from rich.table import Table

    from jaxpipe.profile.gpt_parts import GptCosts
    from jaxpipe.profile.part import PartCosts
    from jaxpipe.schedule import Op


def profile(  # noqa: PLR0913  each is an option of the command line
    *,
    model: str | None = None,
    layers: str | None = None,
    microbatch: int = 1,
    sequence: int | None = None,
    remat: Remat = Remat.FULL,
    matmul_precision: MatmulPrecision = MatmulPrecision.TF32,
    repeats: int = 10,
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None,
    collectives: bool = False,
    largest_mib: int = 256,
) -> int:
    """Measure forward, backward, split backward and optimizer of each part of a model.

    Args:
        model: a preset, such as `gpt2`.
        layers: also measure whole stages with these numbers of layers, such as `2,2`: the first
            holds the embedding, the last the head.
        microbatch: samples in a microbatch.
        sequence: tokens in a sample, by default the model's.
        remat: rematerialisation: `none`, `dots` or `full`; pass the same to `jaxpipe plan --remat`.
        matmul_precision: precision of products of float32 matrices on GPUs, as with
            `run.matmul_precision`: `tf32` where a GPU has it, or `float32`.
        repeats: repetitions of each call; fewer after 10 s, but at least 3.
        out: the JSON file to write, for `jaxpipe plan --profile`; with `--collectives` the TOML
            file, for `jaxpipe autoshard --links`.
        collectives: measure all-gather, all-reduce, reduce-scatter and all-to-all between the ranks
            of the `mpirun` that starts this, instead of a model.
        largest_mib: the largest array of `--collectives`, from 4 to 256 MiB; a rank holds three.
    """
    from jaxpipe.errors import ConfigError

    if collectives:
        from jaxpipe.cli.profile_collectives import profile_collectives

        return profile_collectives(out, largest_mib=largest_mib, repeats=repeats)
    if model is None:
        raise ConfigError("`--model` must name a preset, such as gpt2, unless with `--collectives`")
    from jaxpipe.models import preset_config
    from jaxpipe.profile.gpt_parts import measure_gpt, write_costs
    from jaxpipe.profile.measure_config import MeasureConfig
    from jaxpipe.run.console import console, print_table
    from jaxpipe.run.output_files import check_output
    from jaxpipe.run.progress import Progress, showing_progress

    try:
        config = preset_config(model)
    except ValueError as error:
        raise ConfigError(f"`--model`: {error}") from error
    if out is not None and sequence not in (None, config.sequence):
        raise ConfigError(
            f"a profile has the sequence of the model, {config.sequence}: `--sequence` is "
            f"{sequence}; leave it out, or leave out `--out`"
        )
    check_output("--out", out)
    settings = MeasureConfig(
        microbatch=microbatch,
        sequence=sequence,
        remat=remat,
        matmul_precision=matmul_precision,
        repeats=repeats,
    )
    with showing_progress("measuring") as display:
        measured = measure_gpt(
            config,
            cut=_cut(layers),
            settings=settings,
            clock=time.perf_counter,
            observe=lambda part: display.update(Progress(what="measuring", detail=part)),
        )
    print_table(_table(measured))
    console.print("\n" + "\n".join(_notes(measured, model)), markup=False)
    if out is not None:
        write_costs(measured, out)
        console.print(
            f"\nprofile -> {out}\nnext: jaxpipe plan --profile {out} --model {model} "
            f"--remat {remat}{_precision(matmul_precision)} --batch 64 --cluster CLUSTER",
            markup=False,
        )
    else:
        console.print(f"\nnext: jaxpipe profile --model {model} -o profile.json", markup=False)
    return 0


def _precision(precision: MatmulPrecision) -> str:
    """Return the option of `jaxpipe plan` for the precision, which has the same default."""
    is_default = precision is MatmulPrecision.TF32
    return "" if is_default else f" --matmul-precision {precision}"


def _cut(layers: str | None) -> tuple[int, ...]:
    from jaxpipe.errors import ConfigError

    numbers = [] if layers is None else layers.split(",")
    if not all(number.strip().isdecimal() for number in numbers):
        raise ConfigError(f"`--layers` must be numbers such as 2,2, is {layers!r}")
    return tuple(int(number) for number in numbers)


def _table(measured: "GptCosts") -> "Table":
    from rich.table import Table

    from jaxpipe.profile.part import TIMED

    table = Table(box=None, pad_edge=False)
    table.add_column("milliseconds, median (p10-p90)")
    for name in (*TIMED, "GFLOP/s", "of peak", "kept MB", "compiled MB", "live MB"):
        table.add_column(str(name), justify="right", no_wrap=True)
    for part in (*measured.kinds, *measured.stages):
        table.add_row(
            part.name,
            *(_spread(part, op) for op in TIMED),
            *_speed(part, measured.peak_flops_per_s),
            # MB, not MiB.
            *(f"{size / 1e6:,.1f}" for size in (part.kept_bytes, part.compiled_bytes)),
            f"{part.live_bytes / 1e6:,.1f}",
        )
    return table


def _spread(part: "PartCosts", op: "Op") -> str:
    timing = part.timings[op]
    low, high = 1e3 * timing.p10_s, 1e3 * timing.p90_s  # ms
    return f"{1e3 * timing.median_s:.2f} ({low:.2f}-{high:.2f})"


def _speed(part: "PartCosts", peak_flops_per_s: float) -> tuple[str, str]:
    if not part.forward_flops:
        return "-", "-"
    return f"{part.flops_per_s / 1e9:,.1f}", f"{part.flops_per_s / peak_flops_per_s:.1%}"


def _notes(measured: "GptCosts", model: str) -> list[str]:
    settings = measured.settings
    return [
        f"{model} on {measured.device}, microbatch {settings.microbatch}, {measured.sequence} "
        f"tokens, {measured.config.compute_dtype}, float32 products on GPUs in "
        f"{settings.matmul_precision}, remat {settings.remat}: measured on this machine, at most "
        f"{settings.repeats} calls",
        f"matrix products reach {measured.peak_flops_per_s / 1e9:,.1f} GFLOP/s: the peak",
        "codecs, nanoseconds a value to encode and to decode: "
        + ", ".join(
            f"{kind} {1e9 * each.encode_s:.1f} and {1e9 * each.decode_s:.1f}"
            for kind, each in measured.coding.items()
        ),
        "kept: residuals of one microbatch; compiled: peak of one function; live: "
        "parameters, moments, gradients and residuals",
    ]
