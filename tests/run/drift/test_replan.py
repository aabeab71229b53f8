"""A new plan avoids the slow link; the search runs beside the training and hands its plan over."""

import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from jaxpipe import topo
from jaxpipe.collective import CodecKind
from jaxpipe.config import Config, cluster_from, config_from, job_from, keep_inputs
from jaxpipe.plan import ResolvedPlan, read_plan
from jaxpipe.propose.query import Query
from jaxpipe.propose.resolve import plan_from
from jaxpipe.run.drift.new_plan import (
    CLUSTER_FILE,
    PLAN_FILE,
    Replanned,
    adopted_in,
    replan_settings,
)
from jaxpipe.run.drift.replan import begins_on, replan
from jaxpipe.run.drift.search_process import SearchProcess
from jaxpipe.run.drift.slow_links import LinkJudge, SlowLink, corrected
from jaxpipe.run.drift.watch import DriftWatch, drift_watch
from jaxpipe.run.folder.prepare_run import forget_last_end, write_resolved_plan
from jaxpipe.schedule import Remat
from jaxpipe.topo.write import cluster_toml
from tests.plan_section import decided
from tests.run.drift.test_slow_links import report, use
from tests.runtime.metrics.trackers.test_trackers import metrics_at
from tests.runtime.training import tiny_tree

pytestmark = pytest.mark.slow


def config_of(folder: Path, dataset: Path, **plan: object) -> Config:
    """Return a run whose replicas have a stage in each region: activations cross the link."""
    devices = ["ohio-0:0", "virginia-0:0", "ohio-1:0", "virginia-1:0"]
    model = {"dim": 64, "sequence": 64}
    sections = {"cluster": "two-region", "devices": devices, **plan}
    return config_from(tiny_tree(folder, dataset, plan=sections, model=model))


def test_the_search_finds_a_plan_that_avoids_the_slow_link(tmp_path: Path, dataset: Path) -> None:
    folder = tmp_path / "run"
    config = config_of(folder, dataset)
    cluster = cluster_from(config)
    write_resolved_plan(config, ResolvedPlan.of(plan_from(config), cluster))
    keep_inputs(config, cluster, folder)
    slow = [
        SlowLink(source=0, to=2, planned_bytes_per_s=1.4e8, slowdown=200.0, since_step=1),
        SlowLink(source=2, to=0, planned_bytes_per_s=1.4e8, slowdown=200.0, since_step=1),
    ]
    (folder / CLUSTER_FILE).write_text(cluster_toml(corrected(cluster, slow)))
    search = SearchProcess(folder, 0.01, budget_s=1.0)
    until_s = time.monotonic() + 300.0
    while (found := search.result()) is None and time.monotonic() < until_s:
        time.sleep(0.1)
    assert isinstance(found, Replanned), found
    assert found.is_worth_it
    # The command that continues the run reads both files, and its plan fits the configuration.
    named = dict(setting.split("=") for setting in replan_settings(folder))
    by_file = decided(cluster=named["plan.cluster"], file=named["plan.file"])
    new = plan_from(replace(config, plan=by_file))
    assert new.batch == config.train.batch
    regions = [
        {topo.load("two-region").devices[device].region for device in pipeline.devices}
        for pipeline in new.pipelines
    ]
    assert all(len(each) == 1 for each in regions)


def test_a_new_plan_has_codecs_within_the_limit_of_the_configuration(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link between the regions is slow, and the best plan crosses it: with fewer bytes."""
    config = config_of(tmp_path / "run", dataset, codecs="safe")
    cluster, present = cluster_from(config), plan_from(config)
    slow = [
        SlowLink(source=a, to=b, planned_bytes_per_s=1.4e8, slowdown=2000.0, since_step=1)
        for a, b in ((0, 2), (2, 0))
    ]
    path, out = tmp_path / "slow.toml", tmp_path / "new.toml"
    path.write_text(cluster_toml(corrected(cluster, slow)))
    # A search would find a plan that avoids the link.
    best = SimpleNamespace(plan=present)
    monkeypatch.setattr("jaxpipe.run.drift.replan.search", lambda *_, **__: best)
    found = replan(config, cluster=path, out=out, budget_s=0.1, tflops=0.01)
    # The gradients of the tied embedding cross it, too, and keep their bytes.
    assert found.new_s < 0.6 * found.present_s
    new = read_plan(out, topo.load(str(path)))
    assert [each.codecs for each in new.pipelines] == [(CodecKind.INT8,)] * 2
    assert new.placement == present.placement


class Searching:
    """A search whose result comes when it is given."""

    def __init__(self) -> None:
        self.found: Replanned | str | None = None
        self.is_stopped = False

    def result(self) -> Replanned | str | None:
        return self.found

    def stop(self) -> None:
        self.is_stopped = True


class Watched:
    """A watch over a job of the two regions, and what it has said and done.

    With `adopts`, the run has a supervisor, which continues it with a new plan; each look at the
    clock is a second later.
    """

    def __init__(self, folder: Path, dataset: Path, *, adopts: bool = False) -> None:
        self.num_stops = 0
        config = config_of(folder, dataset)
        self.job = job_from(config, plan_from(config))
        folder.mkdir()
        self.said: list[str] = []
        self.searches: list[Searching] = []
        assert self.job.cluster is not None
        devices = [self.job.plan.device(rank) for rank in range(4)]
        self.watch = DriftWatch(
            job=self.job,
            cluster=self.job.cluster,
            judge=LinkJudge(self.job.cluster, devices, factor=2.0, num_steps=10),
            say=self.said.append,
            resume_line=lambda settings: f"next: {' '.join(settings)} --resume",
            begin=self._begin,
            stop=self._stop if adopts else None,
            clock=map(float, count()).__next__,
        )

    def _stop(self) -> None:
        self.num_stops += 1

    def _begin(self, tflops: float) -> Searching:
        assert tflops >= 0
        self.searches.append(Searching())
        return self.searches[-1]


SLOW = use(0, 1, seconds=20.0)
FASTER, SLOWER = Replanned(present_s=4.0, new_s=1.0), Replanned(present_s=4.0, new_s=3.9)


def test_asking_names_the_link_once_and_the_command_of_the_new_plan(
    tmp_path: Path, dataset: Path
) -> None:
    watched = Watched(tmp_path / "run", dataset)
    for number in range(3):
        watched.watch.after_links(report(number, SLOW))
    (line,) = watched.said
    assert line.startswith("the link ohio-0 -> virginia-0 carries 0.112 Gbps since step 1, planned")
    measured = topo.load(str(tmp_path / "run" / CLUSTER_FILE))
    assert measured.bandwidth_bytes_per_s[0, 2] == pytest.approx(1.4e7, rel=1e-2)
    watched.watch.after_step(metrics_at(4))
    assert len(watched.said) == 1
    watched.searches[0].found = FASTER
    watched.watch.after_step(metrics_at(5))
    assert watched.said[1].splitlines() == [
        "a new plan takes 1 s a step, this one 4 s (simulated over the measured links)",
        f"next: {' '.join(replan_settings(tmp_path / 'run'))} --resume",
    ]
    watched.watch.after_step(metrics_at(6))
    assert len(watched.said) == 2


def test_a_search_that_fails_is_said_and_one_under_way_is_ended(
    tmp_path: Path, dataset: Path
) -> None:
    watched = Watched(tmp_path / "run", dataset)
    watched.watch.after_links(report(0, SLOW))
    watched.watch.after_links(report(1, use(1, 0, seconds=20.0)))
    assert [search.is_stopped for search in watched.searches] == [True, False]
    watched.searches[1].found = "device 'ohio-0:0' has no known speed"
    watched.watch.after_step(metrics_at(21))
    assert watched.said[-1] == "no new plan was found: device 'ohio-0:0' has no known speed"
    watched.watch.after_links(report(2, use(2, 3, seconds=20.0)))
    watched.searches[2].found = SLOWER
    watched.watch.after_step(metrics_at(31))
    assert watched.said[-1].startswith("no plan was found that is faster; this one takes 4 s (sim")
    watched.watch.after_links(report(3, use(3, 2, seconds=20.0)))
    watched.watch.close()
    assert watched.searches[3].is_stopped


def found_by(folder: Path, dataset: Path, found: Replanned) -> Watched:
    """Return the watch of a run that adopts plans, after a search that has found this."""
    watched = Watched(folder, dataset, adopts=True)
    watched.watch.after_links(report(0, SLOW))
    (folder / PLAN_FILE).write_text("the new plan\n")  # as the search does
    watched.watch.after_step(metrics_at(1))
    watched.searches[0].found = found
    watched.watch.after_step(metrics_at(2))
    return watched


def test_the_run_stops_for_a_new_plan_which_later_searches_leave_alone(
    tmp_path: Path, dataset: Path
) -> None:
    folder = tmp_path / "run"
    watched = found_by(folder, dataset, FASTER)
    assert watched.num_stops == 1
    assert watched.said[-1] == (
        "a new plan takes 1 s a step, this one 4 s (simulated over the measured links): the run "
        "stops after its step, and continues with the new plan"
    )
    adopted = adopted_in(folder)
    assert adopted is not None
    cluster, plan = (Path(setting.split("=")[1]) for setting in adopted.settings)
    for name in (CLUSTER_FILE, PLAN_FILE):
        (folder / name).write_text("of a later search\n")
    assert plan.read_text() == "the new plan\n"
    assert topo.load(str(cluster)).link(0, 1).bandwidth_bytes_per_s > 0
    forget_last_end(folder)
    assert adopted_in(folder) is None


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (Replanned(present_s=0.02, new_s=0.01), "it would not repay 1 s of restart in the "),
        (replace(FASTER, keeps_rank_0=False), "it has rank 0 on another host, so it is not taken"),
        (SLOWER, "no plan was found that is faster"),
    ],
)
def test_the_run_continues_where_a_restart_would_not_pay(
    tmp_path: Path, dataset: Path, found: Replanned, why: str
) -> None:
    watched = found_by(tmp_path / "run", dataset, found)
    assert why in watched.said[-1]
    assert watched.num_stops == 0
    assert adopted_in(tmp_path / "run") is None


def test_a_new_plan_for_a_supervisor_has_only_the_devices_of_the_present_one(
    tmp_path: Path, dataset: Path
) -> None:
    watched = Watched(tmp_path / "run", dataset, adopts=True)
    two = decided(cluster="two-region", stages=2, replicas=1)
    config = replace(config_of(tmp_path / "run", dataset), plan=two)
    watched.watch.job = job_from(config, plan_from(config))
    watched.watch.after_links(report(0, SLOW))
    found = topo.load(str(tmp_path / "run" / CLUSTER_FILE))
    assert [device.name for device in found.devices] == ["ohio-0:0", "ohio-1:0"]


def test_the_replica_on_the_host_of_rank_0_comes_first(tmp_path: Path, dataset: Path) -> None:
    config = config_of(tmp_path / "run", dataset)
    timed = replace(config, paced=replace(config.paced, tflops=1.0))
    task, _ = Query(config=timed, cluster=cluster_from(timed)).task(Remat.NONE)
    plan = plan_from(config)
    first = [pipeline.devices for pipeline in begins_on("ohio-1", plan, task).pipelines]
    assert first == [pipeline.devices for pipeline in reversed(plan.pipelines)]
    assert begins_on("virginia-0", plan, task).pipelines == plan.pipelines


@pytest.mark.parametrize(("replan", "stops"), [("auto", True), ("ask", False)])
def test_only_auto_stops_a_run(tmp_path: Path, dataset: Path, replan: str, stops: bool) -> None:
    config = config_of(tmp_path / "run", dataset, replan=replan)
    job = job_from(config, plan_from(config))
    watch = drift_watch(job, config.plan, say=str, resume_line=str, stop=lambda: None)
    assert watch is not None
    assert (watch.stop is not None) is stops


def test_never_and_a_job_without_a_cluster_are_not_watched(tmp_path: Path, dataset: Path) -> None:
    config = config_of(tmp_path / "run", dataset, replan="never")
    job = job_from(config, plan_from(config))
    said: list[str] = []
    for each, planned in ((job, config.plan), (replace(job, cluster=None), decided())):
        assert drift_watch(each, planned, say=said.append, resume_line=str) is None
