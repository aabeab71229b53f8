"""`jaxpipe profile`: measures the parts of a model on a device, or collectives between ranks."""

import time
from itertools import count
from pathlib import Path
from typing import Annotated

import tyro

from jaxpipe.cli.option_fields import Fills
from jaxpipe.errors import ConfigError
from jaxpipe.models import preset_config
from jaxpipe.run.folder.output_files import check_output
from jaxpipe.run.terminal.console import console, print_table
from jaxpipe.run.terminal.progress import Progress, showing_progress
from jaxpipe.runtime.run_config import MatmulPrecision
from jaxpipe.schedule import Remat


def profile(  # noqa: PLR0913  each is an option of the command line
    *,
    model: Annotated[str | None, Fills("preset")] = None,
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
        remat: rematerialisation: `none`, `dots` or `full`; give the same to `jaxpipe plan`, as
            `train.remat`.
        matmul_precision: precision of products of float32 matrices on GPUs, as with
            `run.matmul_precision`: `tf32` where a GPU has it, or `float32`.
        repeats: repetitions of each call; fewer after 10 s, but at least 3.
        out: the JSON file to write, for `paced.profile`; with `--collectives` the TOML
            file, for `jaxpipe autoshard --links`.
        collectives: measure all-gather, all-reduce, reduce-scatter and all-to-all between the ranks
            of the `mpirun` that starts this, instead of a model.
        largest_mib: the largest array of `--collectives`, from 4 to 256 MiB; a rank holds three.
    """
    if collectives:
        from jaxpipe.cli.profile_collectives import profile_collectives  # it imports MPI

        return profile_collectives(out, largest_mib=largest_mib, repeats=repeats)
    if model is None:
        raise ConfigError("`--model` must name a preset, such as gpt2, unless with `--collectives`")
    # They import jax.
    from jaxpipe.cli.profile_text import profile_notes, profile_table
    from jaxpipe.profile.gpt_parts import measure_gpt, num_measurements, write_costs
    from jaxpipe.profile.measure_config import MeasureConfig

    try:
        config = preset_config(model)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if out is not None and sequence not in (None, config.sequence):
        raise ConfigError(
            f"`--sequence` ({sequence}) must be the sequence of the model, {config.sequence}, in a "
            "profile; leave it out, or leave out `--out`"
        )
    check_output("--out", out)
    settings = MeasureConfig(
        microbatch=microbatch,
        sequence=sequence,
        remat=remat,
        matmul_precision=matmul_precision,
        repeats=repeats,
    )
    cut = _cut(layers)
    numbers, total = count(), num_measurements(config, cut)
    with showing_progress("measuring") as display:

        def observe(part: str) -> None:
            display.update(Progress(what="measuring", detail=part, done=next(numbers), total=total))

        measured = measure_gpt(
            config, cut=cut, settings=settings, clock=time.perf_counter, observe=observe
        )
    print_table(profile_table(measured))
    console.print("\n" + "\n".join(profile_notes(measured, model)), markup=False)
    if out is not None:
        write_costs(measured, out)
        console.print(
            f"\nprofile -> {out}\nnext: jaxpipe plan --set paced.profile={out} --model {model} "
            f"--set train.remat={remat}{_precision(matmul_precision)} --batch 64 --cluster CLUSTER",
            markup=False,
        )
    else:
        console.print(f"\nnext: jaxpipe profile --model {model} -o profile.json", markup=False)
    return 0


def _precision(precision: MatmulPrecision) -> str:
    """Return the setting of `jaxpipe plan` for the precision, which has the same default."""
    is_default = precision is MatmulPrecision.TF32
    return "" if is_default else f" --set run.matmul_precision={precision}"


def _cut(layers: str | None) -> tuple[int, ...]:
    numbers = [] if layers is None else layers.split(",")
    if not all(n.isascii() and n.strip().isdecimal() for n in numbers):
        raise ConfigError(f"`--layers` must be numbers such as 2,2, is {layers!r}")
    return tuple(int(number) for number in numbers)
