"""The watchdog of a rank of a job, with the deadlines that the job allows; or one that sleeps."""

from collections.abc import Callable
from pathlib import Path

from jaxpipe.runtime.job import Job
from jaxpipe.runtime.watchdog import Cause, Deadlines, Seen, Watchdog, waits_for


def start_watchdog(
    job: Job, *, rank: int, end: Callable[[Cause], object] | None = None
) -> Watchdog:
    """Return the watch of a rank, not started; `end` is called with the cause of a hang."""
    seen = Seen(
        rank=rank,
        stage=job.plan.stages(rank)[0],
        num_ranks=job.plan.num_ranks,
        folder=job.folder,
        waits_for=waits_for(job.plan, rank=rank, shares_updates=job.optimizer.sharded),
    )
    deadlines = Deadlines(least_s=job.run.hang_s, unlearned_s=job.run.timeout_s)
    return Watchdog(seen, deadlines, end=end)


def no_watchdog(rank: int) -> Watchdog:
    """Return the watch of a rank that nobody watches: never to be started."""
    seen = Seen(rank=rank, stage=0, num_ranks=1, folder=Path(), waits_for=lambda _: ())
    return Watchdog(seen, Deadlines(least_s=1.0, unlearned_s=1.0))
