"""Open the transport that the configuration selects."""

import logging
import os
from collections.abc import Callable
from itertools import pairwise

from jaxpipe.comm import LocalWorld, ShapedTransport, Transport, first_text
from jaxpipe.comm.nccl import NcclBinding, NcclTransport, local_binding
from jaxpipe.comm.tags import GATHER_TAG
from jaxpipe.plan import Plan
from jaxpipe.runtime.process.launched_rank import check_number_of_ranks, launched_rank
from jaxpipe.runtime.run_config import RunConfig, Survival, TransportKind
from jaxpipe.topo import Cluster

logger = logging.getLogger(__name__)

_LEAST_CLOSE_TIMEOUT_S = 60.0


def open_transport(
    run: RunConfig, plan: Plan, cluster: Cluster | None, *, is_launched: bool
) -> Transport:
    """Return the transport of this rank; all ranks call this, each in its main thread.

    `is_launched` is True if an MPI launcher has started this process; else it is the only rank.

    Raises:
        DeadlineError: another rank is missing after `run.timeout_s`.
        TransportError: the MPI or the communicators cannot begin.
    """
    base = open_base(run, is_launched=is_launched)
    return choose_transport(run, plan, cluster, base=base)


def choose_transport(
    run: RunConfig,
    plan: Plan,
    cluster: Cluster | None,
    *,
    base: Transport,
    find_nccl: Callable[[], NcclBinding | str] = local_binding,
) -> Transport:
    """Return `base`, or the transport around it that the configuration selects.

    The `cluster` is needed where its links are emulated, and may be None elsewhere.

    If NCCL is selected and any rank lacks it, all ranks use `base`, with one warning. `find_nccl`
    returns the binding for this rank's GPU, or what is missing.

    Raises:
        DeadlineError: another rank is missing after `run.timeout_s`.
        TransportError: NCCL's communicators cannot be made.
    """
    match run.transport:
        case TransportKind.MPI:
            return base
        case TransportKind.SHAPED:
            assert cluster is not None, "emulated links are those of a cluster"
            devices = [plan.device(rank) for rank in range(plan.num_ranks)]
            return ShapedTransport(base, cluster, devices=devices, scale=run.link_scale)
        case TransportKind.NCCL:
            return _with_nccl(base, plan, find_nccl(), timeout_s=run.timeout_s)


def kind_of(transport: Transport) -> TransportKind:
    """Return how the messages of a transport travel, whatever was configured."""
    if isinstance(transport, NcclTransport):
        return TransportKind.NCCL
    return TransportKind.SHAPED if isinstance(transport, ShapedTransport) else TransportKind.MPI


def pipeline_pairs(plan: Plan) -> tuple[tuple[int, int], ...]:
    """Return the pairs of ranks between which activations travel.

    >>> from jaxpipe.plan import PlanConfig, default_plan
    >>> from jaxpipe import topo
    >>> from jaxpipe.schedule import ScheduleKind
    >>> config = PlanConfig(
    ...     cluster="two-region",
    ...     stages=2,
    ...     replicas=2,
    ...     microbatch=1,
    ...     schedule=ScheduleKind.ONE_F_ONE_B,
    ... )
    >>> plan = default_plan(config, topo.load("two-region"), num_layers=4, batch=4, tied=False)
    >>> pipeline_pairs(plan)
    ((0, 1), (2, 3))
    """
    # A set: ranks with several chunks exchange activations at several boundaries.
    pairs = {
        (plan.rank(replica=replica, stage=before), plan.rank(replica=replica, stage=after))
        for replica, pipeline in enumerate(plan.pipelines)
        for before, after in pairwise(range(pipeline.num_stages))
    }
    return tuple(sorted(pair for pair in pairs if pair[0] != pair[1]))


def open_base(run: RunConfig, *, is_launched: bool) -> Transport:
    """Return the MPI transport of this rank, or that of the only rank if no MPI has started it.

    With `run.survive = "shrink"`, the transport can shrink when a rank is lost.

    Raises:
        ConfigError: MPI has found other ranks than the launcher has started.
    """
    # Imported below, and only if needed: without a launcher there may be no MPI to load.
    if not is_launched:
        return LocalWorld(1).transport(0)
    from jaxpipe.comm.mpi.mpi_transport import MpiTransport

    survives = run.survive is Survival.SHRINK
    # At the end of a run, rank 0 closes trackers and draws pictures while the others wait.
    close_timeout_s = max(_LEAST_CLOSE_TIMEOUT_S, run.timeout_s)
    transport = MpiTransport(
        close_timeout_s=close_timeout_s, survives=survives, keep_warm=run.keep_warm
    )
    check_number_of_ranks(launched_rank(os.environ), num_found=transport.num_ranks)
    return transport


def _with_nccl(
    base: Transport, plan: Plan, binding: NcclBinding | str, *, timeout_s: float
) -> Transport:
    missing = _missing_anywhere(base, binding, timeout_s=timeout_s)
    if isinstance(binding, str) or missing:
        if base.rank == 0:
            warning = "`run.transport` is nccl, but messages go over MPI, through host memory: %s"
            logger.warning(warning, missing)
        return base
    return NcclTransport(base, binding, pairs=pipeline_pairs(plan), timeout_s=timeout_s)


def _missing_anywhere(base: Transport, binding: NcclBinding | str, *, timeout_s: float) -> str:
    """Return on all ranks why the first rank without NCCL lacks it; an empty string if none does.

    All ranks must decide alike: with one of them on MPI, the others would wait for it in NCCL.
    """
    mine = f"rank {base.rank}: {binding}" if isinstance(binding, str) else ""
    return first_text(base, mine, tag=GATHER_TAG, timeout_s=timeout_s)
