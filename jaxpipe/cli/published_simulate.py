"""`jaxpipe published simulate`: simulates a step of a published system on a cluster."""

import json
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from jaxpipe.baselines.systems import Way, system_named

if TYPE_CHECKING:  # it imports numpy, which `--help` can do without
    from jaxpipe.topo import Cluster
    from jaxpipe.topo.gpu import Precision


def simulate(  # noqa: PLR0913, PLR0915  each is an option of the command line
    *,
    system: str,
    cluster: str,
    layers: int = 24,
    batch: int = 1024,
    seed: int = 2022,
    microbatch: int = 1,
    precision: str = "fp16",
    keep_activations: bool = False,
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
    trace: Path | None = None,
    png: Path | None = None,
    ranks: Annotated[str | None, tyro.conf.arg(metavar="0-7,12")] = None,
    stages: Annotated[str | None, tyro.conf.arg(metavar="0,2-3")] = None,
) -> int:
    """Simulate a step of GPT-3 XL, with constants fitted to the runs of DT-FM.

    Args:
        system: the training system: dtfm, dtfm-unscheduled, dtfm-fair, megatron-p8,
            megatron-p8-unscheduled, megatron-t8, megatron-p4t2, megatron-p2t4, pytorch-pipe,
            zero3, or jaxpipe.
        cluster: one of the catalogue, such as `case5-worldwide`, or a TOML file.
        layers: number of layers; the published runs have 24, 32 and 40.
        batch: samples in a step; the published runs have 1024, 2048 and 4096.
        seed: shuffles the ranks of systems without a scheduler.
        microbatch: samples of a microbatch; other than 1 for Megatron and PyTorch Pipe only.
        precision: fp16, as the published runs, or fp32.
        keep_activations: keep all activations instead of recomputing layers; Megatron only.
        json_: print one JSON object and nothing else.
        trace: a file to write with the trace of all ranks, for Perfetto.
        png: a PNG, SVG or PDF to draw: the timeline of the step.
        ranks: the ranks to draw.
        stages: draw the ranks of these stages alone; with `--ranks`, those that are both.
    """
    from jaxpipe import topo
    from jaxpipe.baselines.published.published_systems import (
        num_devices_used,
        system_peak_bytes,
        system_step,
    )
    from jaxpipe.baselines.published.step_time import step_time
    from jaxpipe.baselines.published.workload import Workload
    from jaxpipe.errors import ConfigError
    from jaxpipe.run.folder.output_files import check_output, check_picture
    from jaxpipe.run.terminal.console import console
    from jaxpipe.run.terminal.progress import showing_progress
    from jaxpipe.simulate import dtfm_constants
    from jaxpipe.simulate import simulate as run
    from jaxpipe.trace import chosen_ranks, plot, write_chrome

    check_output("--trace", trace)
    check_picture("--png", png)
    choice = system_named(system, Way.SIMULATE, field="--system")
    try:
        where = topo.load(cluster)
    except (ValueError, OSError) as error:
        raise ConfigError(f"`--cluster`: {error}") from error
    workload = Workload(
        num_layers=layers,
        batch=batch,
        microbatch=microbatch,
        precision=_precision(precision),
        recompute=not keep_activations,
    )
    constants = dtfm_constants()
    step_model = system_step(choice, where, workload=workload, constants=constants, seed=seed)
    with showing_progress("simulating a step"):
        simulated = run(step_model)
    step = step_time(simulated, workload)
    needed = system_peak_bytes(choice, where, workload=workload)
    if trace is not None:
        write_chrome(simulated, trace)
    if png is not None:
        drawn = chosen_ranks(simulated, ranks=ranks, stages=stages)
        plot(simulated, png, step=simulated.spans[0].step, ranks=drawn)
    if json_:
        about = {
            "truth": simulated.truth.value,
            "system": system,
            "cluster": cluster,
            "layers": layers,
            "batch": batch,
            "seed": seed,
            "microbatch": microbatch,
            "precision": precision,
            "recompute": workload.recompute,
            "memory_bytes": needed,
            "constants": asdict(constants),
        }
        print(json.dumps(asdict(step) | about))
        return 0
    console.print(
        f"{system} on {where.name}, {layers} layers, batch {batch}: {step.seconds:.2f} s, "
        f"{step.pflops:.2f} PFLOPS (simulated, with constants fitted to the runs of DT-FM)",
        markup=False,
    )
    _note_devices(num_devices_used(choice, step_model), where)
    for kind, seconds in step.breakdown.items():
        console.print(
            f"  {kind.replace('_', ' '):<24}{seconds:8.2f} s {seconds / step.seconds:6.1%}",
            markup=False,
        )
    if needed is not None:
        console.print(_memory(needed, where), markup=False)
    if trace is not None:
        console.print(f"\ntrace -> {trace}", markup=False)
    if png is not None:
        console.print(f"\npicture -> {png}", markup=False)
    return 0


def _note_devices(num_used: int, cluster: "Cluster") -> None:
    """Say so if only some of the devices train."""
    from jaxpipe.run.terminal.console import console

    if num_used < len(cluster):
        console.print(
            f"  {num_used} of {len(cluster)} devices train: all do not share the batch evenly",
            markup=False,
        )


def _memory(needed: float, cluster: "Cluster") -> str:
    line = f"  memory of the fullest device: {needed / 2**30:.1f} GiB (estimated)"
    least = min((device.memory_bytes or inf for device in cluster.devices), default=inf)
    return line if needed <= least else f"{line}, more than the {least / 2**30:.0f} GiB it has"


def _precision(name: str) -> "Precision":
    from jaxpipe.errors import ConfigError
    from jaxpipe.topo.gpu import Precision

    fitted = (Precision.FP16, Precision.FP32)
    if name not in fitted:
        raise ConfigError(f"`--precision` is one of {', '.join(fitted)}, not {name!r}")
    return Precision(name)
