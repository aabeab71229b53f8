"""One rank of a run: it opens its transport, has or receives the plan, and trains or paces."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from jaxpipe.comm import Transport
from jaxpipe.config import cluster_from, place_of
from jaxpipe.run.rank.member import Member
from jaxpipe.run.rank.paced import run_paced
from jaxpipe.run.rank.receive_plan import Start, receive_plan
from jaxpipe.run.rank.train_rank import train_rank
from jaxpipe.run.terminal.progress import Progress
from jaxpipe.run.terminal.rank_progress import rank_progress
from jaxpipe.runtime.checkpoint import newest_valid
from jaxpipe.runtime.open_transport import choose_transport, open_base
from jaxpipe.runtime.run_config import ComputeKind, TransportKind
from jaxpipe.runtime.watchdog.rank_start import StartPhase, write_start


def run_rank(start: Start) -> int:
    """Run as one rank, and return the exit code; an error ends all ranks.

    Raises:
        UserError: the input is wrong.
        RunError: the run has failed.
    """
    transport = open_base(start.config.run, is_launched=start.is_launched)
    # Only a launcher of ours has resolved the plan before it starts ranks.
    has_launcher = start.is_launched and start.resolved is not None
    folder = Path(start.config.run.folder)
    is_watched = has_launcher or (start.is_launched and start.request.is_supervised)
    if is_watched:
        write_start(folder, transport.rank, StartPhase.STARTED)
    with ExitStack() as held:
        received = start if start.resolved is not None else receive_plan(transport, start, held)
        if received is None:
            return 0
        # With the user's own launcher only now: before, the folder was not locked.
        if start.is_launched and not is_watched:
            write_start(folder, transport.rank, StartPhase.STARTED)
        with rank_progress(folder, rank=transport.rank, has_launcher=has_launcher) as say:
            return _run(received, transport, say=say)


def _run(start: Start, transport: Transport, *, say: Callable[[Progress], None]) -> int:
    """Train or pace as a rank that has the plan."""
    config, plan = start.config, start.plan
    if config.run.compute is ComputeKind.PACED:
        return run_paced(config, plan, transport, cluster=start.cluster, say=say)
    try:
        # A launcher has checked the checkpoints, but passes none on to its ranks.
        if start.request.resume and start.checkpoint is None and transport.rank == 0:
            start = replace(start, checkpoint=newest_valid(place_of(config)))
        cluster = start.cluster
        if config.run.transport is TransportKind.SHAPED and cluster is None:
            cluster = cluster_from(config)  # its links, which a plan does not hold
        transport = choose_transport(config.run, plan, cluster, base=transport)
    except BaseException as error:
        transport.close(error=error)
        raise
    return train_rank(Member.of(start, transport, say=say))
