"""Reports of links: every rank sends its log of messages to rank 0, which matches and sums them.

::

    rank 0   log ────────────────┐
    rank 1   log ──► gather ──►  match sends with receives ─► pairs of ranks ─► regions
    rank 2   log ──►             └─ every `trace.links_every` steps
"""

import msgspec
import numpy as np

from jaxpipe.comm import GATHER_TAG, MessageLog, Transport, gather_bytes
from jaxpipe.comm.message_log import RECEIVED, SENT
from jaxpipe.runtime.config import LinkDetail
from jaxpipe.runtime.hooks import MeasuredPairs
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.metrics.matched_messages import Matcher, pair_uses
from jaxpipe.runtime.metrics.step_result import StepEnd
from jaxpipe.topo import with_slower_links
from jaxpipe.trace import LinkReport, link_uses


class LinkReporter:
    """Reports the use of links after the steps in which it is due; all ranks call it.

    `clock_offset_s` is the difference of the clock of rank 0 to that of this rank.
    """

    def __init__(
        self,
        job: Job,
        transport: Transport,
        log: MessageLog,
        *,
        clock_offset_s: float,
        first_step: int,
    ) -> None:
        self._job, self._transport, self._log = job, transport, log
        self._clock_offset_s = clock_offset_s
        self._reported_step = first_step
        self._matcher = Matcher()

    def measure(self, ended: StepEnd) -> MeasuredPairs | None:
        """Return what was sent since the last report on rank 0, and None elsewhere or if not due.

        Raises:
            DeadlineError: a rank did not send its log in time.
            TransportError: a message could not be moved, or the job was aborted.
        """
        if not self._is_due(ended):
            return None
        first_step, self._reported_step = self._reported_step + 1, ended.step
        logs = self._gathered()
        if logs is None:
            return None
        sends, receives = (np.concatenate(column) for column in zip(*logs, strict=True))
        pairs = tuple(pair_uses(sends, self._matcher.match(sends, receives)))
        return MeasuredPairs(first_step=first_step, last_step=ended.step, pairs=pairs)

    def _is_due(self, ended: StepEnd) -> bool:
        """Return whether a report is due; the same on all ranks, which all take part in it."""
        job = self._job
        if job.trace.links is LinkDetail.NONE or job.plan.num_ranks == 1:
            return False
        if job.outer.is_on and ended.outer_bytes is None:
            return False  # between outer steps, no island waits for another
        is_over = ended.is_stopped or ended.step == job.train.steps
        return is_over or ended.step - self._reported_step >= job.trace.links_every

    def _gathered(self) -> list[tuple[np.ndarray, np.ndarray]] | None:
        """Return the sends and receives of all ranks on rank 0, on its clock."""
        sent, received = self._log.take_sent(), self._log.take_received()
        for messages, name in ((sent, "started_s"), (received, "posted_s"), (received, "over_s")):
            messages[name] += self._clock_offset_s
        payloads = gather_bytes(
            self._transport,
            msgspec.msgpack.encode((sent.tobytes(), received.tobytes())),
            root=0,
            tag=GATHER_TAG,
            timeout_s=self._job.run.timeout_s,
        )
        if payloads is None:
            return None
        return [_unpacked(payload) for payload in payloads]


def _unpacked(payload: bytes) -> tuple[np.ndarray, np.ndarray]:
    sent, received = msgspec.msgpack.decode(payload, type=tuple[bytes, bytes])
    return np.frombuffer(sent, SENT), np.frombuffer(received, RECEIVED)


def link_report(measured: MeasuredPairs, job: Job) -> LinkReport | None:
    """Return the use of links by regions, and by ranks if asked for; None without a cluster."""
    if job.cluster is None:
        return None
    cluster = with_slower_links(job.cluster, scale=job.run.link_scale)
    devices = [job.plan.device(rank) for rank in range(job.plan.num_ranks)]

    def bandwidth(source: int, to: int) -> float:
        return float(cluster.alone_bytes_per_s[devices[source], devices[to]])

    regions = link_uses(
        measured.pairs,
        name_of=lambda rank: cluster.devices[devices[rank]].region,
        bandwidth_bytes_per_s=bandwidth,
    )
    ranks = link_uses(
        measured.pairs if job.trace.links is LinkDetail.RANKS else (),
        name_of=lambda rank: f"rank {rank}",
        bandwidth_bytes_per_s=bandwidth,
    )
    return LinkReport(first_step=measured.first_step, regions=regions, ranks=ranks)
