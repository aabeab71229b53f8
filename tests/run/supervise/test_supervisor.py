"""A run is started again as often as there is use in it, and with as many ranks as there are."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpipe import topo
from jaxpipe.plan import PlanConfig, default_plan, read_plan, write_plan
from jaxpipe.run.drift.new_plan import ADOPTED_EXIT_CODE, CLUSTER_FILE, PLAN_FILE, Replanned, adopt
from jaxpipe.run.supervise.ending import Attempt
from jaxpipe.run.supervise.planner import Planner
from jaxpipe.run.supervise.site import ThisHost
from jaxpipe.run.supervise.supervisor import Run, supervise
from jaxpipe.runtime.checkpoint import begin_checkpoint, commit, write_shard
from jaxpipe.runtime.watchdog import Cause, CauseKind, clear_cause, write_cause
from jaxpipe.schedule import ScheduleKind
from jaxpipe.topo.toml_text import toml_text
from jaxpipe.topo.write import cluster_toml
from tests.runtime.training import Tree, tiny_tree

KIND = ScheduleKind.ONE_F_ONE_B
KILLED = Cause(kind=CauseKind.KILLED, message="gone")
RAISED = Cause(kind=CauseKind.ERROR, message="ValueError: no", rank=1)


def six_layers(run: Path, dataset: Path, /, **sections: dict[str, Any]) -> Tree:
    """Return a configuration in which three stages are faster than two, in spite of the head."""
    return tiny_tree(run, dataset, model={"num_layers": 6}, **sections)


@dataclass(frozen=True)
class Script:
    """What an attempt does: the step of the checkpoint that it leaves, and how it ends."""

    code: int
    step: int | None = None
    cause: Cause | None = None
    adopts: bool = False


@dataclass
class Theatre:
    """Plays scripts in the place of training."""

    folder: Path
    scripts: Sequence[Script]
    attempts: list[Attempt] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)

    def start(self, attempt: Attempt) -> int:
        script = self.scripts[len(self.attempts)]
        self.attempts.append(attempt)
        clear_cause(self.folder)
        if script.step is not None:
            folder = begin_checkpoint(self.folder, step=script.step)
            commit(folder, write_shard(folder, "stage-0", {"a": np.ones(3)}), {})
        if script.adopts:
            cluster = topo.load("laptop")
            (self.folder / CLUSTER_FILE).write_text(cluster_toml(cluster))
            config = PlanConfig(cluster="laptop", stages=1, replicas=2, microbatch=1, schedule=KIND)
            new = default_plan(config, cluster, num_layers=6, batch=8, tied=True)
            write_plan(new, cluster, self.folder / PLAN_FILE)
            adopt(self.folder, Replanned(present_s=4.0, new_s=1.0), step=script.step or 0)
        if script.cause is not None:
            write_cause(self.folder, script.cause)
        return script.code


def staged(config: Path, theatre: Theatre, max_restarts: int) -> Run:
    return Run(
        planner=Planner(config=config, settings=()),
        site=ThisHost(start=theatre.start),
        max_restarts=max_restarts,
        show=theatre.shown.append,
    )


def left_out(theatre: Theatre) -> list[list[str]]:
    """Return the devices that each attempt leaves out, by their number on the laptop."""
    plans = [attempt.planned for attempt in theatre.attempts]
    return [[name.rpartition(":")[2] for name in sorted(plan.left_out)] for plan in plans]


def play(tmp_path: Path, scripts: Sequence[Script], *, max_restarts: int = 3) -> Theatre:
    config = tmp_path / "config.toml"
    config.write_text(toml_text(six_layers(tmp_path / "run", tmp_path)))
    theatre = Theatre(tmp_path / "run", scripts)
    assert supervise(staged(config, theatre, max_restarts), resume=False) == scripts[-1].code
    assert len(theatre.attempts) == len(scripts)
    return theatre


def test_a_run_that_is_done_at_once(tmp_path: Path) -> None:
    theatre = play(tmp_path, [Script(0, step=4)])
    assert theatre.shown == ["attempt 1 is done"]


@pytest.mark.parametrize("code", [2, 130, 143])
def test_what_no_restart_would_help(tmp_path: Path, code: int) -> None:
    play(tmp_path, [Script(code)])


def test_it_goes_on_from_the_newest_checkpoint(tmp_path: Path) -> None:
    theatre = play(tmp_path, [Script(1, step=10, cause=RAISED), Script(1, step=20), Script(0)])
    assert [attempt.from_step for attempt in theatre.attempts] == [None, 10, 20]
    assert theatre.shown[0] == (
        "attempt 1 failed with exit code 1: rank 1: error: ValueError: no\n"
        "attempt 2 continues from step 10"
    )


def test_restarts_have_an_end(tmp_path: Path) -> None:
    scripts = [Script(1, step=step) for step in (1, 2, 3)]
    theatre = play(tmp_path, scripts, max_restarts=2)
    assert theatre.shown[-1].endswith("the newest checkpoint is that of step 3")


def test_a_new_plan_is_that_of_all_later_attempts_and_no_failure(tmp_path: Path) -> None:
    adopts = Script(ADOPTED_EXIT_CODE, step=7, adopts=True)
    theatre = play(tmp_path, [Script(1, step=5), adopts, Script(1, step=8), Script(0)])
    folder = tmp_path / "run"
    new = (f"plan.cluster={folder}/drift-cluster-7.toml", f"plan.file={folder}/drift-plan-7.toml")
    assert [attempt.settings for attempt in theatre.attempts] == [(), (), new, new]
    assert [attempt.from_step for attempt in theatre.attempts] == [None, 5, 7, 8]
    assert theatre.shown[1] == (
        "attempt 2 stopped for a new plan: 1 s a step in place of 4 s, simulated over the measured "
        "links\nattempt 3 continues from step 7: 1 stage x 2 replicas on here-0"
    )


def test_failures_before_a_new_plan_count(tmp_path: Path) -> None:
    adopts = Script(ADOPTED_EXIT_CODE, step=7, adopts=True)
    scripts = [Script(1, step=5), adopts, Script(1, step=8)]
    play(tmp_path, scripts, max_restarts=1)


def test_no_restart_at_all(tmp_path: Path) -> None:
    theatre = play(tmp_path, [Script(1)], max_restarts=0)
    assert theatre.shown[-1].endswith("no further attempt; there is no checkpoint yet")


def test_an_error_that_comes_again_is_not_tried_a_third_time(tmp_path: Path) -> None:
    theatre = play(tmp_path, [Script(1, step=5, cause=RAISED), *[Script(1, cause=RAISED)] * 2])
    assert "no further attempt" in theatre.shown[-1]


def test_ranks_that_are_lost_again_and_again_are_left_out(tmp_path: Path) -> None:
    killed = Script(137, cause=KILLED)
    theatre = play(tmp_path, [Script(137, step=5, cause=KILLED), killed, killed, Script(0)])
    # No cause names a rank: the last one is left out.
    assert left_out(theatre) == [[], [], [], ["3"]]
    file = tmp_path / "run" / "plan-4.toml"
    settings = [attempt.settings for attempt in theatre.attempts]
    assert settings == [(), (), (), (f"plan.file={file}",)]
    assert read_plan(file, topo.load("laptop")).num_ranks == 3
    words = "with fewer ranks: 3 stages x 1 replica on here-0, without here-0:3"
    assert theatre.shown[2].endswith(words)


def killed(rank: int) -> Script:
    cause = Cause(kind=CauseKind.KILLED, message="it was ended by signal 9", rank=rank)
    return Script(137, cause=cause)


def test_ranks_that_are_lost_in_turn_come_back(tmp_path: Path) -> None:
    scripts = [killed(rank) for rank in (0, 1, 2, 0)]
    theatre = play(tmp_path, [*scripts, Script(0)], max_restarts=4)
    assert {attempt.settings for attempt in theatre.attempts} == {()}


def test_a_link_that_is_cut_costs_no_ranks(tmp_path: Path) -> None:
    cut = Script(1, cause=Cause(kind=CauseKind.LINK, message="messages do not arrive"))
    theatre = play(tmp_path, [cut, cut, cut, Script(0)])
    assert {attempt.settings for attempt in theatre.attempts} == {()}


def test_a_rank_that_stays_away_is_left_out_once(tmp_path: Path) -> None:
    # After the smaller plan, rank 2 is another device: its loss is the first one.
    theatre = play(tmp_path, [*[killed(2)] * 3, Script(0)])
    assert left_out(theatre) == [[], [], ["2"], ["2"]]


def test_the_device_of_a_lost_rank_is_left_out(tmp_path: Path) -> None:
    theatre = play(tmp_path, [killed(2), killed(2), Script(0)])
    groups = theatre.attempts[-1].planned.groups
    assert groups == (("here-0:0",), ("here-0:1",), ("here-0:3",))


def test_a_run_grows_again_when_its_device_is_back(tmp_path: Path) -> None:
    preempted = Script(137, step=9, cause=killed(0).cause)
    theatre = play(tmp_path, [killed(2), killed(2), preempted, Script(0)], max_restarts=4)
    assert left_out(theatre) == [[], [], ["2"], []]
    assert theatre.shown[2].endswith("attempt 4 continues from step 9, with all ranks again")


def test_a_device_that_is_still_away_costs_one_attempt(tmp_path: Path) -> None:
    preempted = Script(137, step=9, cause=killed(0).cause)
    scripts = [killed(2), killed(2), preempted, killed(2), Script(0)]
    theatre = play(tmp_path, scripts, max_restarts=4)
    assert left_out(theatre) == [[], [], ["2"], [], ["2"]]


@dataclass
class Fading(Theatre):
    """Loses a device after each attempt that trains, until two are gone; they do not return."""

    gone: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def start(self, attempt: Attempt) -> int:
        self.attempts.append(attempt)
        devices = [name for group in attempt.planned.groups for name in group]
        clear_cause(self.folder)
        self.sizes.append(len(devices))
        lost = [rank for rank, name in enumerate(devices) if name in self.gone]
        if not lost and len(self.gone) == 2:
            return 0
        if not lost:
            step = len(self.attempts)
            folder = begin_checkpoint(self.folder, step=step)
            commit(folder, write_shard(folder, "stage-0", {"a": np.ones(3)}), {})
            self.gone.append(devices[1])
            lost = [1]
        message = "it was ended by signal 9"
        write_cause(self.folder, Cause(kind=CauseKind.KILLED, message=message, rank=lost[0]))
        return 137


def test_two_devices_that_are_gone_for_good_cost_seven_restarts(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(toml_text(six_layers(tmp_path / "run", tmp_path)))
    theatre = Fading(tmp_path / "run", ())
    assert supervise(staged(config, theatre, 7), resume=False) == 0, theatre.shown
    # In between, all four are tried once: the first device might have returned.
    assert theatre.sizes == [4, 4, 4, 3, 4, 3, 3, 2]
    assert len(set(theatre.gone)) == 2
