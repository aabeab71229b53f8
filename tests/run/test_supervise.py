"""A run is started again as often as there is use in it, and with as many ranks as there are."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpipe.config import cluster_from, config_from, load_config
from jaxpipe.plan import ResolvedPlan, write_plan
from jaxpipe.propose.resolve import plan_from
from jaxpipe.run.drift.adopt import ADOPTED_EXIT_CODE, adopt
from jaxpipe.run.drift.replanned import CLUSTER_FILE, PLAN_FILE, Replanned
from jaxpipe.run.prepare_run import write_resolved_plan
from jaxpipe.run.smaller_plan import smaller, within, without_file
from jaxpipe.run.supervise import Attempt, Run, supervise
from jaxpipe.runtime.checkpoint import begin_checkpoint, commit, write_shard
from jaxpipe.runtime.watchdog import Cause, CauseKind, clear_cause, write_cause
from jaxpipe.topo.toml_text import toml_text
from tests.runtime.training import Tree, tiny_tree

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
            for name in (CLUSTER_FILE, PLAN_FILE):
                (self.folder / name).write_text("a file\n")
            adopt(self.folder, Replanned(present_s=4.0, new_s=1.0), step=script.step or 0)
        if script.cause is not None:
            write_cause(self.folder, script.cause)
        return script.code


def play(tmp_path: Path, scripts: Sequence[Script], *, max_restarts: int = 3) -> Theatre:
    config = tmp_path / "config.toml"
    config.write_text(toml_text(six_layers(tmp_path / "run", tmp_path)))
    theatre = Theatre(tmp_path / "run", scripts)
    run = Run(
        config=config,
        settings=(),
        max_restarts=max_restarts,
        start=theatre.start,
        show=theatre.shown.append,
    )
    assert supervise(run, resume=False) == scripts[-1].code
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
    assert theatre.shown[-1].endswith("the newest intact checkpoint is that of step 3")


def test_a_new_plan_is_that_of_all_later_attempts_and_no_failure(tmp_path: Path) -> None:
    adopts = Script(ADOPTED_EXIT_CODE, step=7, adopts=True)
    theatre = play(tmp_path, [Script(1, step=5), adopts, Script(1, step=8), Script(0)])
    folder = tmp_path / "run"
    new = (f"plan.cluster={folder}/drift-cluster-7.toml", f"plan.file={folder}/drift-plan-7.toml")
    assert [attempt.settings for attempt in theatre.attempts] == [(), (), new, new]
    assert [attempt.from_step for attempt in theatre.attempts] == [None, 5, 7, 8]
    assert theatre.shown[1] == (
        "attempt 2 stopped for a new plan: 1 s a step in place of 4 s, simulated over the measured "
        "links\nattempt 3 continues from step 7"
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
    assert [attempt.settings for attempt in theatre.attempts] == [
        *[()] * 3,
        ("plan.stages=3", "plan.replicas=1"),
    ]
    assert "with fewer ranks: plan.stages=3 plan.replicas=1" in theatre.shown[2]


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
    fewer = ("plan.stages=3", "plan.replicas=1")
    assert [attempt.settings for attempt in theatre.attempts] == [(), (), fewer, fewer]


def test_the_device_of_a_lost_rank_is_left_out(tmp_path: Path) -> None:
    config = config_from(six_layers(tmp_path / "run", tmp_path))
    resolved = ResolvedPlan.of(plan_from(config), cluster_from(config))
    write_resolved_plan(config, resolved)
    theatre = play(tmp_path, [killed(2), killed(2), Script(0)])
    left = [name for rank, name in enumerate(resolved.devices) if rank != 2]
    settings = theatre.attempts[-1].settings
    assert settings[:2] == ("plan.stages=3", "plan.replicas=1")
    made = load_config(tmp_path / "config.toml", settings)
    assert ResolvedPlan.of(plan_from(made), cluster_from(made)).devices == tuple(left)


FEWER = ("plan.stages=3", "plan.replicas=1")


def test_a_run_grows_again_when_its_device_is_back(tmp_path: Path) -> None:
    preempted = Script(137, step=9, cause=killed(0).cause)
    theatre = play(tmp_path, [killed(2), killed(2), preempted, Script(0)], max_restarts=4)
    assert [attempt.settings for attempt in theatre.attempts] == [(), (), FEWER, ()]
    assert theatre.shown[2].endswith("attempt 4 continues from step 9, with all ranks again")


def test_a_device_that_is_still_away_costs_one_attempt(tmp_path: Path) -> None:
    preempted = Script(137, step=9, cause=killed(0).cause)
    scripts = [killed(2), killed(2), preempted, killed(2), Script(0)]
    theatre = play(tmp_path, scripts, max_restarts=4)
    assert [attempt.settings for attempt in theatre.attempts] == [(), (), FEWER, (), FEWER]


@dataclass
class Fading(Theatre):
    """Loses a device after each attempt that trains, until two are gone; they do not return."""

    gone: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def start(self, attempt: Attempt) -> int:
        self.attempts.append(attempt)
        config = load_config(self.folder.parent / "config.toml", attempt.settings, notice=None)
        resolved = ResolvedPlan.of(plan_from(config), cluster_from(config))
        write_resolved_plan(config, resolved)
        clear_cause(self.folder)
        self.sizes.append(resolved.plan.num_ranks)
        lost = [rank for rank, name in enumerate(resolved.devices) if name in self.gone]
        if not lost and len(self.gone) == 2:
            return 0
        if not lost:
            step = len(self.attempts)
            folder = begin_checkpoint(self.folder, step=step)
            commit(folder, write_shard(folder, "stage-0", {"a": np.ones(3)}), {})
            self.gone.append(resolved.devices[1])
            lost = [1]
        message = "it was ended by signal 9"
        write_cause(self.folder, Cause(kind=CauseKind.KILLED, message=message, rank=lost[0]))
        return 137


def test_two_devices_that_are_gone_for_good_cost_seven_restarts(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(toml_text(six_layers(tmp_path / "run", tmp_path)))
    theatre = Fading(tmp_path / "run", ())
    run = Run(
        config=config,
        settings=(),
        max_restarts=7,
        start=theatre.start,
        show=theatre.shown.append,
    )
    assert supervise(run, resume=False) == 0, theatre.shown
    # In between, all four are tried once: the first device might have returned.
    assert theatre.sizes == [4, 4, 4, 3, 4, 3, 3, 2]
    assert len(set(theatre.gone)) == 2


@pytest.mark.parametrize(
    ("stages", "replicas", "batch", "expected"),
    [
        (2, 2, 8, (3, 1)),
        (3, 1, 8, (2, 1)),
        (1, 2, 8, (1, 1)),
        (3, 2, 8, (4, 1)),  # no rank may hold more than before: its memory is unknown
        (1, 1, 8, None),
    ],
)
def test_smaller_plans(
    tmp_path: Path, stages: int, replicas: int, batch: int, expected: tuple[int, int] | None
) -> None:
    path = tmp_path / "config.toml"
    plan = {"stages": stages, "replicas": replicas}
    path.write_text(toml_text(six_layers(tmp_path, tmp_path, plan=plan, train={"batch": batch})))
    settings = smaller(load_config(path), ("run.seed=3", "plan.replicas=9"))
    if expected is None or settings is None:
        assert settings is None
        assert expected is None
        return
    assert settings == ("run.seed=3", f"plan.stages={expected[0]}", f"plan.replicas={expected[1]}")
    made = plan_from(load_config(path, settings))
    assert (made.num_stages, made.num_replicas) == expected
    assert made.num_ranks < stages * replicas


@pytest.mark.parametrize(
    ("num_ranks", "expected"), [(4, (2, 2)), (3, (3, 1)), (2, (2, 1)), (0, None)]
)
def test_the_largest_plan_for_so_many_ranks(
    tmp_path: Path, num_ranks: int, expected: tuple[int, int] | None
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(toml_text(six_layers(tmp_path, tmp_path)))
    found = within(load_config(path), num_ranks=num_ranks)
    assert expected == (None if found is None else (found.plan.stages, found.plan.replicas))


def test_a_smaller_plan_is_for_those_that_are_left(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(toml_text(six_layers(tmp_path, tmp_path, plan={"cluster": "two-region"})))
    left = ("ohio-1:0", "virginia-0:0", "virginia-1:0")
    found = within(load_config(path), num_ranks=3, devices=left)
    assert found is not None
    assert found.plan.devices == left
    assert plan_from(found).placement == ((1, 2, 3),)


def test_replicas_that_are_whole_stay_and_others_share_unequally(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    plan = {"cluster": "homogeneous:hosts=6,delay_ms=0,bandwidth_gbps=1e7", "stages": 2}
    tree = six_layers(tmp_path, tmp_path, plan={**plan, "replicas": 3}, train={"batch": 9})
    path.write_text(toml_text(tree))
    config = load_config(path)
    names = [device.name for device in cluster_from(config).devices]
    left = (*names[:2], *names[3:])
    settings = smaller(config, ("run.seed=3",), devices=left)
    assert settings is not None
    made = plan_from(load_config(path, settings))
    assert made.batch == 9
    assert not made.is_even
    assert [name for name in names if name in str(settings)] == list(left)


def test_settings_of_another_plan_take_the_place_of_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    plan = {"cuts": [[3, 3], [3, 3]], "shares": [3, 5]}
    path.write_text(toml_text(six_layers(tmp_path, tmp_path, plan=plan)))
    settings = smaller(load_config(path), ())
    assert settings is not None
    made = plan_from(load_config(path, settings))
    assert made.num_ranks < 4
    assert made.batch == 8


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_plan_file_is_planned_again_as_a_section_would_be(tmp_path: Path, chunks: int) -> None:
    stages = 2 * chunks
    kind = "1f1b" if chunks == 1 else "interleaved-1f1b"
    plan = {"stages": stages, "replicas": 2, "schedule": kind, "chunks": chunks}
    path, by_file = tmp_path / "config.toml", tmp_path / "by-file.toml"
    path.write_text(toml_text(six_layers(tmp_path, tmp_path, plan={**plan, "all_reduce": "ring"})))
    section = load_config(path)
    write_plan(plan_from(section), cluster_from(section), tmp_path / "plan.toml")
    file = {"file": str(tmp_path / "plan.toml"), "stages": 7}  # the file overrides
    by_file.write_text(toml_text(six_layers(tmp_path, tmp_path, plan=file)))
    left = [device.name for device in cluster_from(section).devices][1:4]
    found = [
        smaller(load_config(each, notice=None), ("run.seed=3",), devices=left)
        for each in (path, by_file)
    ]
    assert all(found)
    made = [
        plan_from(load_config(each, settings or ()))
        for each, settings in zip((path, by_file), found, strict=True)
    ]
    assert made[0] == made[1]
    assert made[0].num_ranks < 4


def test_a_plan_file_with_a_schedule_of_its_own_has_no_smaller_plan(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(toml_text(six_layers(tmp_path, tmp_path)))
    config = load_config(path)
    plan = plan_from(config)
    custom = replace(plan, schedule=plan.compute_schedule())
    assert without_file(config.plan, plan) is not None
    assert without_file(config.plan, custom) is None
