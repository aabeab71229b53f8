"""One rank of one system: open the transport, train, gather and write the measurements."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from jaxpipe.baselines.autoshard.spmd.distributed import join, leave
from jaxpipe.baselines.autoshard.strategy import write_strategy
from jaxpipe.baselines.compare.measured import (
    MeasuredStep,
    MeasuredSystem,
    RankPart,
    write_measured,
)
from jaxpipe.baselines.compare.pipeline_rank import run_pipeline
from jaxpipe.baselines.compare.sharded_rank import Ranks, run_sharded
from jaxpipe.baselines.compare.strategies import Chosen
from jaxpipe.baselines.compare.system import Executor
from jaxpipe.baselines.systems import System
from jaxpipe.comm import GATHER_TAG, Transport, closing, gather_bytes
from jaxpipe.config import Config, cluster_from, job_from
from jaxpipe.plan import Plan, ResolvedPlan
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.open_transport import open_transport
from jaxpipe.topo import Cluster


def run_system(
    system: System,
    config: Config,
    resolved: ResolvedPlan,
    *,
    folder: Path,
    observe: Callable[[MeasuredStep], None],
    executor: Executor = Executor.SPMD,
) -> None:
    """Train as one of the ranks that MPI has started; rank 0 writes the measurements of all.

    `observe` is called on rank 0, after each step. An error ends all ranks.

    Raises:
        DeadlineError: another rank did not answer in time.
        PlanError: no strategy was found.
    """
    cluster = cluster_from(config)  # its regions and links, which a plan does not hold
    transport = open_transport(config.run, resolved.plan, cluster, is_launched=True)
    with closing(transport):
        job = job_from(config, resolved.plan, devices=resolved.devices)
        _run(system, job, transport, cluster, folder=folder, observe=observe, executor=executor)


def _run(
    system: System,
    job: Job,
    transport: Transport,
    cluster: Cluster,
    *,
    folder: Path,
    observe: Callable[[MeasuredStep], None],
    executor: Executor = Executor.SPMD,
) -> None:
    callback = observe if transport.rank == 0 else _ignore
    choice: Chosen | None = None
    if system is System.PIPELINE:
        steps, part = run_pipeline(job, transport, cluster=cluster, observe=callback)
    else:
        devices = join(transport, timeout_s=job.run.startup_timeout_s)
        ranks = Ranks(transport=transport, devices=devices, cluster=cluster)
        choice, steps, part = run_sharded(system, job, ranks, observe=callback, executor=executor)
        # On all ranks together: JAX takes a process that just ends for a lost one.
        leave()
    parts = _gathered(transport, part, timeout_s=job.run.timeout_s)
    if parts is None:
        return
    measured = MeasuredSystem(
        system=system,
        strategy=_description(job.plan) if choice is None else choice.description,
        tokens_per_step=job.tokens_per_step,
        steps=steps,
        ranks=parts,
        is_counted=choice is not None and executor is Executor.SPMD,
        search_s=None if choice is None else choice.search_s,
        searched_for=None if choice is None else choice.searched_for,
    )
    write_measured(measured, folder)
    if choice is not None:
        write_strategy(choice.strategy, folder / f"{system}-strategy.json")


def _gathered(
    transport: Transport, part: RankPart, *, timeout_s: float
) -> tuple[RankPart, ...] | None:
    payload = msgspec.json.encode(part)
    payloads = gather_bytes(transport, payload, root=0, tag=GATHER_TAG, timeout_s=timeout_s)
    if payloads is None:
        return None
    return tuple(msgspec.json.decode(text, type=RankPart) for text in payloads)


def _description(plan: Plan) -> str:
    pipelines = plan.pipelines[:1] if plan.is_even else plan.pipelines
    sizes = (
        f"{pipeline.num_microbatches} microbatches of {pipeline.microbatch}"
        for pipeline in pipelines
    )
    return f"{plan.shape}, {plan.schedule_name}, {' + '.join(sizes)}"


def _ignore(_step: MeasuredStep) -> None:
    """Callback of the ranks other than 0."""
