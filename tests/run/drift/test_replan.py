"""A new plan avoids the slow link; the search runs beside the training and hands its plan over."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from jaxpipe import topo
from jaxpipe.config import (
    Config,
    cluster_from,
    config_from,
    job_from,
    keep_inputs,
    plan_from,
)
from jaxpipe.errors import ConfigError
from jaxpipe.plan import Replan, ResolvedPlan
from jaxpipe.run.drift.corrected import corrected
from jaxpipe.run.drift.hand_over import (
    REPLAN_FILES,
    check_replan,
    replan_settings,
    take_request,
)
from jaxpipe.run.drift.replan import Replanned
from jaxpipe.run.drift.search_process import SearchProcess
from jaxpipe.run.drift.slow_links import LinkJudge, SlowLink
from jaxpipe.run.drift.watch import Answers, DriftWatch
from jaxpipe.run.prepare_run import write_resolved_plan
from jaxpipe.runtime.config import LinkDetail
from jaxpipe.topo.write import cluster_toml
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
    (folder / REPLAN_FILES[0]).write_text(cluster_toml(corrected(cluster, slow)))
    search = SearchProcess(folder, 0.01, budget_s=1.0)
    until_s = time.monotonic() + 300.0
    while (found := search.result()) is None and time.monotonic() < until_s:
        time.sleep(0.1)
    assert isinstance(found, Replanned), found
    assert found.is_worth_it
    # The command that continues the run reads both files, and its plan fits the configuration.
    new = plan_from(replace(config, plan=replace(config.plan, **dict(_fields(folder)))))
    assert new.batch == config.train.batch
    regions = [
        {topo.load("two-region").devices[device].region for device in pipeline.devices}
        for pipeline in new.pipelines
    ]
    assert all(len(each) == 1 for each in regions)


def _fields(folder: Path) -> list[tuple[str, str]]:
    named = [setting.partition("=") for setting in replan_settings(folder)]
    return [(key.removeprefix("plan."), value) for key, _, value in named]


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
    """A watch over a job of the two regions, and what it has said and done."""

    def __init__(self, folder: Path, dataset: Path, replan: Replan) -> None:
        config = config_of(folder, dataset, replan=replan.value)
        self.job = job_from(config, plan_from(config))
        folder.mkdir()
        self.said: list[str] = []
        self.stops = 0
        self.searches: list[Searching] = []
        assert self.job.cluster is not None
        devices = [self.job.plan.device(rank) for rank in range(4)]
        self.watch = DriftWatch(
            job=self.job,
            cluster=self.job.cluster,
            planned=config.plan,
            judge=LinkJudge(self.job.cluster, devices, factor=2.0, num_steps=10),
            answers=Answers(
                say=self.said.append,
                resume_line=lambda settings: f"next: {' '.join(settings)} --resume",
                stop=self._stop,
            ),
            begin=self._begin,
        )

    def _stop(self) -> None:
        self.stops += 1

    def _begin(self, tflops: float) -> Searching:
        assert tflops >= 0
        self.searches.append(Searching())
        return self.searches[-1]


SLOW = use(0, 1, seconds=20.0)
FASTER, SLOWER = Replanned(present_s=4.0, new_s=1.0), Replanned(present_s=4.0, new_s=3.9)


def test_asking_names_the_link_once_and_the_command_of_the_new_plan(
    tmp_path: Path, dataset: Path
) -> None:
    watched = Watched(tmp_path / "run", dataset, Replan.ASK)
    for number in range(3):
        watched.watch.after_links(report(number, SLOW))
    (line,) = watched.said
    assert line.startswith("the link ohio-0 -> virginia-0 carries 0.112 Gbps since step 1, planned")
    measured = topo.load(str(tmp_path / "run" / REPLAN_FILES[0]))
    assert measured.bandwidth_bytes_per_s[0, 2] == pytest.approx(1.4e7, rel=1e-2)
    watched.watch.after_step(metrics_at(4))
    assert len(watched.said) == 1
    watched.searches[0].found = FASTER
    watched.watch.after_step(metrics_at(5))
    assert watched.said[1].splitlines() == [
        "a new plan takes 1 s a step, this one 4 s (simulated over the measured links)",
        f"next: {' '.join(replan_settings(tmp_path / 'run'))} --resume",
    ]
    assert not watched.stops
    watched.watch.after_step(metrics_at(6))
    assert len(watched.said) == 2


def test_auto_stops_the_run_only_for_a_faster_plan(tmp_path: Path, dataset: Path) -> None:
    for name, found, stops in (("slower", SLOWER, 0), ("faster", FASTER, 1)):
        folder = tmp_path / name
        watched = Watched(folder, dataset, Replan.AUTO)
        watched.watch.after_links(report(0, SLOW))
        watched.searches[0].found = found
        watched.watch.after_step(metrics_at(11))
        assert watched.stops == stops
        assert take_request(folder) == bool(stops)
        assert not take_request(folder)


def test_a_search_that_fails_is_said_and_one_under_way_is_ended(
    tmp_path: Path, dataset: Path
) -> None:
    watched = Watched(tmp_path / "run", dataset, Replan.ASK)
    watched.watch.after_links(report(0, SLOW))
    watched.watch.after_links(report(1, use(1, 0, seconds=20.0)))
    assert [search.is_stopped for search in watched.searches] == [True, False]
    watched.searches[1].found = "device 'ohio-0:0' has no known speed"
    watched.watch.after_step(metrics_at(21))
    assert watched.said[-1] == "no new plan was found: device 'ohio-0:0' has no known speed"
    watched.watch.after_links(report(2, use(2, 3, seconds=20.0)))
    watched.watch.close()
    assert watched.searches[2].is_stopped


def test_auto_needs_a_supervisor_and_reports_of_links(tmp_path: Path, dataset: Path) -> None:
    config = config_of(tmp_path / "run", dataset, replan="auto")
    check_replan(config, is_supervised=True)
    with pytest.raises(ConfigError, match=r"`plan.replan` is auto; use that command, or .* ask"):
        check_replan(config, is_supervised=False)
    silent = replace(config, trace=replace(config.trace, links=LinkDetail.NONE))
    with pytest.raises(ConfigError, match=r"`trace.links` is none; set it to regions"):
        check_replan(silent, is_supervised=True)
