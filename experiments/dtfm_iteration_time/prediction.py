"""Simulate the published runs.

The simulated time is linear in the number of accumulation steps, since each of them ends with a
barrier; so two steps determine the times of all batches.
"""

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

import numpy as np

from experiments.dtfm_iteration_time.published import ALL_CLUSTERS, CLUSTERS, Cell, PipelineCell
from experiments.progress import counted_results
from jaxpipe import topo
from jaxpipe.baselines.published.dtfm import along, dtfm_step, scheduled
from jaxpipe.baselines.published.published_systems import system_step
from jaxpipe.baselines.published.workload import Workload
from jaxpipe.baselines.systems import System
from jaxpipe.collective import AllReduceKind
from jaxpipe.errors import PlanError
from jaxpipe.simulate import Constants, StepEnds, simulate_ends
from jaxpipe.topo.gpu import Precision

STEP = 512
"""Samples of one accumulation step: 8 pipelines of 64 microbatches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The inputs of the simulated time of a step, except the batch."""

    cluster: str
    system: System
    layers: int
    seed: int


SYSTEMS = {
    "dtfm_scheduled": System.DTFM,
    "dtfm_unscheduled": System.DTFM_UNSCHEDULED,
    "dtfm_fair": System.DTFM_FAIR,
    "megatron_p8": System.MEGATRON_P8,
    "megatron_p8_unscheduled": System.MEGATRON_P8_UNSCHEDULED,
    "megatron_t8": System.MEGATRON_T8,
    "megatron_p4t2": System.MEGATRON_P4T2,
    "megatron_p2t4": System.MEGATRON_P2T4,
    "zero_s3": System.ZERO3,
}
"""The name of each system in the published tables, and in the simulator."""
LAYERS = (24, 32, 40)
BATCHES = (1024, 2048, 4096)
SEEDS = (2022, 2023, 2024)
"""The seeds of the published runs with random placements."""
_DRAWN = ("dtfm_unscheduled", "dtfm_fair", "megatron_p8_unscheduled")
_STEPPED = (System.DTFM, System.DTFM_UNSCHEDULED, System.DTFM_FAIR)


def run_of(cell: Cell) -> Run:
    """Return the run of a cell; the seed matters only for random placements."""
    seed = cell.seed if cell.system in _DRAWN and cell.seed is not None else 0
    return Run(
        cluster=CLUSTERS[cell.case], system=SYSTEMS[cell.system], layers=cell.layers, seed=seed
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The simulated seconds of a run with some batch; `seed` is None if nothing is drawn."""

    cluster: str
    system: str
    layers: int
    batch: int
    seed: int | None
    seconds: float


def predict_all(constants: Constants, executor: Executor) -> list[Prediction]:
    """Return all systems, sizes and seeds on all clusters of DT-FM, published or not.

    Systems that do not fit a cluster, such as Megatron P8 on 48 devices, are left out.
    """
    named = [
        (name, Run(cluster=cluster, system=system, layers=layers, seed=seed))
        for cluster in ALL_CLUSTERS
        for name, system in SYSTEMS.items()
        for layers in LAYERS
        for seed in (SEEDS if name in _DRAWN else (0,))
    ]
    lines = executor.map(partial(_line_if_any, constants=constants), [run for _, run in named])
    lines = counted_results(lines, "published systems", total=len(named))
    return [
        Prediction(
            cluster=run.cluster,
            system=name,
            layers=run.layers,
            batch=batch,
            seed=run.seed or None,
            seconds=float(np.dot(through, (1.0, batch / STEP))),
        )
        for (name, run), through in zip(named, lines, strict=True)
        if through is not None
        for batch in BATCHES
    ]


def _line_if_any(run: Run, *, constants: Constants) -> tuple[float, float] | None:
    try:
        return line(run, constants=constants)
    except PlanError:
        return None


def predict(cells: Sequence[Cell], constants: Constants, executor: Executor) -> np.ndarray:
    """Return the simulated seconds of cells."""
    runs = tuple(dict.fromkeys(run_of(cell) for cell in cells))
    lines = dict(zip(runs, executor.map(partial(line, constants=constants), runs), strict=True))
    return np.array([np.dot(lines[run_of(cell)], (1.0, cell.batch / STEP)) for cell in cells])


def seconds_of(cells: Sequence[Cell], predictions: Sequence[Prediction]) -> np.ndarray:
    """Return the simulated seconds of cells, from predictions of everything."""
    seconds = {
        (each.cluster, each.system, each.layers, each.batch, each.seed or 0): each.seconds
        for each in predictions
    }
    runs = [(cell, run_of(cell)) for cell in cells]
    return np.array(
        [seconds[run.cluster, c.system, c.layers, c.batch, run.seed] for c, run in runs]
    )


def pipeline_seconds(cell: PipelineCell, constants: Constants) -> float:
    """Return the simulated seconds of an fp32 pipeline of 12 stages, or of its replicas."""
    num_stages, samples = 12, 64
    batch = samples * cell.num_replicas
    cluster = topo.load(
        f"homogeneous:hosts={num_stages * cell.num_replicas},delay_ms={cell.delay_ms},"
        f"bandwidth_gbps={cell.bandwidth_gbps}"
    )
    workload = Workload(num_layers=24, batch=batch, precision=Precision.FP32)
    job = dtfm_step(
        cluster,
        scheduled(cluster, batch=batch, num_stages=num_stages),
        workload=workload,
        constants=constants,
        all_reduce=along(AllReduceKind.CENTRAL),
    )
    return simulate_ends(job).seconds


def line(run: Run, *, constants: Constants) -> tuple[float, float]:
    """Return the line of a run's seconds over the batch: intercept, and seconds per 512 samples.

    DT-FM's barriers, as rank 0 leaves them, are one step apart. Other systems have no barriers and
    are simulated with two batches.
    """
    if run.system not in _STEPPED:
        return line_between(
            *(_simulate(run, batch=n * STEP, constants=constants).seconds for n in (2, 4)),
            num_steps=2,
        )
    num_steps = 2
    ends = _simulate(run, batch=num_steps * STEP, constants=constants)
    # The first and the last barrier enclose the step. Fewer than 8 pipelines accumulate over
    # several barriers for as many samples.
    inner_s = ends.barriers_s[1:-1]
    step_s = inner_s[-1] - inner_s[-1 - len(inner_s) // num_steps]
    return ends.seconds - num_steps * step_s, step_s


def line_between(one_s: float, twice_s: float, *, num_steps: int) -> tuple[float, float]:
    """Return the line through the seconds of `num_steps` steps and of twice as many."""
    step_s = (twice_s - one_s) / num_steps
    return one_s - num_steps * step_s, step_s


def _simulate(run: Run, *, batch: int, constants: Constants) -> StepEnds:
    workload = Workload(num_layers=run.layers, batch=batch)
    cluster = topo.load(run.cluster)
    job = system_step(run.system, cluster, workload=workload, constants=constants, seed=run.seed)
    return simulate_ends(job)
