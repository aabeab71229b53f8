"""Watch over the links of a run, beside the training of rank 0.

Everything that takes longer than a few milliseconds happens in a process of its own, which is
looked after when a step is reported.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from jaxpipe.plan import PlanConfig, Replan
from jaxpipe.run.drift.new_plan import CLUSTER_FILE, Replanned, adopt, replan_settings
from jaxpipe.run.drift.search_process import Search, SearchProcess
from jaxpipe.run.drift.slow_links import LinkJudge, SlowLink, corrected
from jaxpipe.runtime.hooks import MeasuredPairs
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.metrics.records import StepMetrics
from jaxpipe.topo import Cluster, subcluster, with_slower_links
from jaxpipe.topo.units import gbps_from_bytes_per_s
from jaxpipe.topo.write import cluster_toml


@dataclass(slots=True, kw_only=True)
class DriftWatch:
    """Says once that a link is slower than planned, and what a new plan would gain.

    `cluster` is the planned one of the `job`. `say` prints a line, `resume_line` returns the one
    that names the command that continues the run with more settings. `begin` starts the search, for
    devices of that many TFLOP/s. `stop` stops the run after its step, so that its supervisor
    continues with the new plan; None if nobody would.
    """

    job: Job
    cluster: Cluster
    judge: LinkJudge
    say: Callable[[str], object]
    resume_line: Callable[[Sequence[str]], str]
    begin: Callable[[float], Search]
    stop: Callable[[], object] | None = None
    clock: Callable[[], float] = time.monotonic
    _begin_s: float = 0.0
    _pause_s: float | None = None
    _slow: list[SlowLink] = field(default_factory=list)
    _search: Search | None = None
    _tflops: float = 0.0

    def __post_init__(self) -> None:
        """Note when the ranks begin to compile."""
        self._begin_s = self.clock()

    def after_step(self, metrics: StepMetrics) -> None:
        """Note the speed of the devices, and look after a search that is under way."""
        if self._pause_s is None:
            # What a restart costs at least: compiling, restoring, and the first step.
            self._pause_s = self.clock() - self._begin_s
        computing = self.job.plan.num_ranks * (1.0 - metrics.bubble)
        if computing > 0:
            # The best step: in a slow one, ranks wait outside of the pipeline phase as well.
            self._tflops = max(self._tflops, metrics.flops_per_s / computing / 1e12)
        if self._search is not None and (found := self._search.result()) is not None:
            self._search = None
            self._report(found, step=metrics.step)

    def after_links(self, measured: MeasuredPairs) -> None:
        """Judge a report of links, and begin to plan again if one of them is slow."""
        new = self.judge.judge(measured)
        if not new:
            return
        self._slow += new
        self.say(drift_line(self.cluster, new))
        self.close()  # a search that is under way is for links that have changed since
        now = corrected(self.cluster, self._slow, healthy=self.judge.healthy)
        if self.stop is not None:  # other hosts may be gone, and the supervisor starts none
            plan = self.job.plan
            used = sorted({device for row in plan.placement for device in row})
            now = subcluster(now, used)
        try:
            about = "The cluster of the run, with its slow links as they were measured."
            (self.job.folder / CLUSTER_FILE).write_text(cluster_toml(now, about=about))
            self._search = self.begin(self._tflops)
        except (OSError, ValueError) as error:
            self.say(f"no new plan was searched: {error}")

    def close(self) -> None:
        """End a search that is under way."""
        if self._search is not None:
            self._search.stop()
            self._search = None

    def _report(self, found: Replanned | str, *, step: int) -> None:
        if isinstance(found, str):
            self.say(f"no new plan was found: {found}")
            return
        present = f"{found.present_s:.4g} s (simulated over the measured links)"
        if not found.is_worth_it:
            self.say(f"no plan was found that is faster; this one takes {present} a step")
            return
        line = f"a new plan takes {found.new_s:.4g} s a step, this one {present}"
        refusal = self._refusal(found, step=step)
        if refusal is None:
            self._adopt(found, line, step=step)
            return
        why = f": {refusal}" if refusal else ""
        self.say(f"{line}{why}\n{self.resume_line(replan_settings(self.job.folder))}")

    def _refusal(self, found: Replanned, *, step: int) -> str | None:
        """Return why the run does not continue with a new plan by itself, "" if none could ask."""
        if self.stop is None:
            return ""
        left, pause_s = self.job.train.steps - step, self._pause_s or 0.0
        if not found.repays(num_steps=left, pause_s=pause_s):
            return (
                f"it would not repay {pause_s:.3g} s of restart in the {left} steps that are left"
            )
        if not found.keeps_rank_0:
            return "it has rank 0 on another host, so it is not taken by itself"
        return None

    def _adopt(self, found: Replanned, line: str, *, step: int) -> None:
        assert self.stop is not None, "nobody continues"
        try:
            adopt(self.job.folder, found, step=step)
        except OSError as error:
            self.say(f"{line}: it cannot be kept: {error}")
            return
        self.say(f"{line}: the run stops after its step, and continues with the new plan")
        self.stop()


def drift_watch(
    job: Job,
    planned: PlanConfig,
    *,
    say: Callable[[str], object],
    resume_line: Callable[[Sequence[str]], str],
    stop: Callable[[], object] | None = None,
) -> DriftWatch | None:
    """Return what watches over the links of a job; None if that is not asked for, or not known.

    Only rank 0 knows the cluster of a job. `stop` stops the run for a supervisor that continues it
    with a new plan, None if it has none.
    """
    if job.cluster is None or planned.replan is Replan.NEVER:
        return None
    judge = LinkJudge(
        with_slower_links(job.cluster, scale=job.run.link_scale),
        [job.plan.device(rank) for rank in range(job.plan.num_ranks)],
        factor=planned.drift_factor,
        num_steps=planned.drift_steps,
    )
    return DriftWatch(
        job=job,
        cluster=job.cluster,
        judge=judge,
        say=say,
        resume_line=resume_line,
        begin=partial(SearchProcess, job.folder),
        stop=stop if planned.replan is Replan.AUTO else None,
    )


def drift_line(cluster: Cluster, slow: Sequence[SlowLink]) -> str:
    """Return the line about links that have become slow: the slowest one, and how many more.

    >>> from jaxpipe import topo
    >>> link = SlowLink(source=0, to=2, planned_bytes_per_s=1.4e8, slowdown=10.0, since_step=41)
    >>> drift_line(topo.load("two-region"), [link])
    'the link ohio-0 -> virginia-0 carries 0.112 Gbps since step 41, planned were 1.12 Gbps'
    """
    worst = max(slow, key=lambda each: each.slowdown)
    source, to = cluster.hosts[worst.source].name, cluster.hosts[worst.to].name
    others = f"; {len(slow) - 1} more slow" if len(slow) > 1 else ""
    return (
        f"the link {source} -> {to} carries "
        f"{gbps_from_bytes_per_s(worst.measured_bytes_per_s):.3g} Gbps since step "
        f"{worst.since_step}, planned were "
        f"{gbps_from_bytes_per_s(worst.planned_bytes_per_s):.3g} Gbps{others}"
    )
