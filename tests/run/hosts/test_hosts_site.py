"""A run over hosts follows those that answer and those that join; `mpirun` is played here."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpipe import topo
from jaxpipe.plan import default_plan, write_plan
from jaxpipe.run.drift.new_plan import CLUSTER_FILE, PLAN_FILE, Replanned, adopt
from jaxpipe.run.hosts import hosts_site, joining
from jaxpipe.run.hosts.hosts_site import HostsSite, end_of
from jaxpipe.run.hosts.join_words import AnswerKind, JoinRequest
from jaxpipe.run.hosts.joining import Joining
from jaxpipe.run.supervise.ending import EndKind
from jaxpipe.run.supervise.planner import Planner
from jaxpipe.run.supervise.supervisor import Run, supervise
from jaxpipe.run.train_request import TrainRequest
from jaxpipe.runtime.checkpoint import begin_checkpoint, commit, write_shard
from jaxpipe.runtime.process.mpirun import Wish
from jaxpipe.runtime.watchdog import (
    Cause,
    CauseKind,
    Heartbeat,
    mark_ended,
    read_cause,
    write_cause,
)
from jaxpipe.runtime.watchdog.heartbeat import heartbeat_file, write_heartbeat
from jaxpipe.runtime.watchdog.rank_start import StartPhase, write_start
from jaxpipe.topo import subcluster
from jaxpipe.topo.toml_text import toml_text
from jaxpipe.topo.write import cluster_toml
from tests.plan_section import decided
from tests.runtime.training import tiny_tree

CLUSTER = "homogeneous:hosts=4,delay_ms=0,bandwidth_gbps=1e6"
STEPS = 30
FIRST_STEP = Heartbeat(
    rank=0, stage=0, step=1, doing="forward", waits_for=(), overdue=False, beat=1, process=1,
    host="here-0",
)  # fmt: skip


@dataclass
class Act:
    """An attempt: the hosts that ask to join, the step that it saves, and how it ends."""

    asks: Sequence[str] = ()
    step: int | None = None
    code: int = 0
    ends: bool = False
    cause: Cause | None = None
    adopts: bool = False


@dataclass
class Theatre:
    """Plays `mpirun`, the desk and the hosts."""

    folder: Path
    acts: Sequence[Act]
    answers_by: Sequence[Sequence[str]] = ()
    silent: Sequence[str] = ()
    requests: list[JoinRequest] = field(default_factory=list)
    started: list[tuple[tuple[str, ...], TrainRequest]] = field(default_factory=list)
    plans: list[str | None] = field(default_factory=list)
    answered: list[tuple[str, AnswerKind, str]] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    wishes: list[list[Wish | None]] = field(default_factory=list)
    num_failures: int = 0
    absent: Sequence[str] = ()
    has_asked: bool = False
    begins: bool = True
    starts_mpi: bool = False

    def run_ranks(
        self,
        hosts: Sequence[str],
        request: TrainRequest,
        *,
        can_stop: Callable[[], bool],
        poll: Callable[[], Wish | None],
        plan_file: Path | None,
    ) -> int:
        act = self.acts[len(self.started)]
        self.started.append((tuple(hosts), request))
        self.plans.append(None if plan_file is None else plan_file.name)
        assert request.plan_bytes == (0 if plan_file is None else plan_file.stat().st_size)
        assert not can_stop()
        watch = self.folder / "watch"
        watch.mkdir(parents=True, exist_ok=True)
        if self.begins:
            file = heartbeat_file(self.folder, 0)
            write_heartbeat(file, FIRST_STEP, num_ranks=2)
        if self.starts_mpi:
            write_start(self.folder, 1, StartPhase.STARTED)
        self.requests += [JoinRequest(host=host, versions="1", nonce="n") for host in act.asks]
        self.wishes.append([poll(), poll()])
        if act.step is not None:
            folder = begin_checkpoint(self.folder, step=act.step)
            commit(folder, write_shard(folder, "stage-0", {"a": np.ones(3)}), {})
        if act.adopts:
            for name in (CLUSTER_FILE, PLAN_FILE):
                (self.folder / name).write_bytes((self.folder.parent / name).read_bytes())
            adopt(self.folder, Replanned(present_s=4.0, new_s=1.0), step=act.step or 0)
        if act.ends:
            mark_ended(self.folder)
        if act.cause is not None:
            write_cause(self.folder, act.cause)
        return act.code

    def poll(self) -> tuple[JoinRequest, ...]:
        found = tuple(self.requests)
        self.requests.clear()
        return found

    def answer(self, host: str, kind: AnswerKind, text: str) -> None:
        self.answered.append((host, kind, text))

    def answering(self, _: Any, hosts: Sequence[str], **__: Any) -> tuple[str, ...]:
        if not self.started and not self.has_asked:  # before the first attempt
            self.has_asked = True
            return tuple(host for host in hosts if host not in self.absent)
        self.num_failures += 1
        return tuple(h for h in hosts if h in self.answers_by[self.num_failures - 1])


@contextmanager
def stage(tmp_path: Path, theatre: Theatre) -> Iterator[Run]:
    config = tmp_path / "config.toml"
    plan = {"cluster": CLUSTER, "devices": ["here-0:0", "here-1:0"], "replicas": 1}
    sections = {"model": {"num_layers": 6}, "plan": plan, "train": {"steps": STEPS}}
    config.write_text(toml_text(tiny_tree(theatre.folder, tmp_path, **sections)))

    class Alive:
        def __init__(self, _: Any, host: str) -> None:
            self.host = host

        def poll(self, **_: Any) -> bool:
            return self.host not in theatre.silent

        def stop(self) -> None: ...

    patch = pytest.MonkeyPatch()
    patch.setattr(joining, "SignOfLife", Alive)
    patch.setattr(hosts_site, "answering", theatre.answering)
    there: Any = theatre
    planner = Planner(config=config, settings=())
    site = HostsSite(
        joining=Joining(
            desk=there,
            planner=planner,
            start=there,
            versions="1",
            there=["here-0", "here-1"],
            show=theatre.shown.append,
        ),
        request=TrainRequest(config=config, is_supervised=True, lock="12ab"),
        here="here-0",
        beat=lambda: None,
    )
    try:
        yield Run(planner=planner, site=site, max_restarts=2, show=theatre.shown.append)
    finally:
        patch.undo()


def play(tmp_path: Path, theatre: Theatre) -> int:
    with stage(tmp_path, theatre) as run:
        return supervise(run, resume=False)


def test_a_run_that_is_done_at_once(tmp_path: Path) -> None:
    theatre = Theatre(tmp_path / "run", [Act(step=STEPS, ends=True)])
    assert play(tmp_path, theatre) == 0
    hosts, request = theatre.started[0]
    assert hosts == ("here-0", "here-1")
    assert (request.settings, request.resume, theatre.plans) == ((), False, [None])
    assert theatre.shown == ["attempt 1 is done"]


def test_a_host_joins_after_a_step_and_the_step_is_announced(tmp_path: Path) -> None:
    acts = [Act(asks=["here-2"], step=7, ends=True), Act(step=STEPS, ends=True)]
    theatre = Theatre(tmp_path / "run", acts)
    assert play(tmp_path, theatre) == 0
    assert theatre.wishes == [[Wish.STOP, Wish.STOP], [None, None]]
    hosts, request = theatre.started[1]
    assert sorted(hosts) == ["here-0", "here-1", "here-2"]
    assert request.resume
    # The host of rank 0 may lack the file of the new plan, so it is sent there.
    assert theatre.plans == [None, "plan-2.toml"]
    assert request.settings == (f"plan.file={tmp_path}/run/plan-2.toml",)
    assert [kind for _, kind, _ in theatre.answered] == [AnswerKind.WAIT, AnswerKind.JOINED]
    assert "here-2 takes part from step 8 on: " in theatre.answered[1][2]


def test_a_lost_host_is_left_out_and_may_be_back_after_the_next_failure(tmp_path: Path) -> None:
    # An `mpirun` that has lost a host ends with 0, and its ranks leave no mark.
    acts = [Act(step=5), Act(step=9, code=1), Act(step=STEPS, ends=True)]
    both = ("here-0", "here-1")
    theatre = Theatre(tmp_path / "run", acts, answers_by=[["here-0"], both])
    assert play(tmp_path, theatre) == 0
    assert [hosts for hosts, _ in theatre.started] == [both, ("here-0",), both]
    assert "hosts that do not answer: here-1\nattempt 2 continues from step 5" in theatre.shown[0]


def test_a_host_that_does_not_answer_at_first_is_named_before_ranks_start(tmp_path: Path) -> None:
    theatre = Theatre(
        tmp_path / "run",
        [Act(step=STEPS, ends=True)],
        answers_by=[["here-0"]],
        absent=["here-1"],
    )
    assert play(tmp_path, theatre) == 0
    assert [hosts for hosts, _ in theatre.started] == [("here-0",)]
    assert (
        "starts no process over ssh within 15 s on here-1; try `ssh here-1 true`"
        in (theatre.shown[0])
    )


def test_ranks_that_never_begin_are_ended_with_the_ways_to_their_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts_site, "_SECONDS_TO_JOIN_MPI", -900.0)
    theatre = Theatre(tmp_path / "run", [Act(code=1)], answers_by=[[]], begins=False)
    with stage(tmp_path, theatre) as run:
        supervise(replace(run, max_restarts=0), resume=False)
    assert "no rank has begun within 0 s" in theatre.shown[0]
    assert "the ways from here-0 are here-1: none; if MPI takes others" in theatre.shown[0]


def test_a_restore_may_take_longer_than_the_start_of_mpi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once MPI has started, what ranks wait for has timeouts of its own, in the ranks."""
    monkeypatch.setattr(hosts_site, "_SECONDS_TO_JOIN_MPI", -900.0)
    acts = [Act(step=STEPS, ends=True)]
    answers = [("here-0", "here-1")]
    theatre = Theatre(tmp_path / "run", acts, answers_by=answers, begins=False, starts_mpi=True)
    assert play(tmp_path, theatre) == 0
    assert theatre.wishes == [[None, None]]
    assert read_cause(tmp_path / "run") is None


def test_a_host_that_joined_and_is_lost_may_join_again(tmp_path: Path) -> None:
    acts = [
        Act(asks=["here-2"], step=5, ends=True),
        Act(step=6),
        Act(asks=["here-2"], step=7, ends=True),
        Act(step=STEPS, ends=True),
    ]
    theatre = Theatre(tmp_path / "run", acts, answers_by=[("here-0", "here-1")])
    assert play(tmp_path, theatre) == 0
    assert [len(hosts) for hosts, _ in theatre.started] == [2, 3, 2, 3]


def test_a_host_that_is_gone_before_its_first_step_is_asked_to_join_again(tmp_path: Path) -> None:
    acts = [Act(asks=["here-2"], step=5, code=1), Act(step=STEPS, ends=True)]
    theatre = Theatre(tmp_path / "run", acts, answers_by=[("here-0", "here-1")])
    assert play(tmp_path, theatre) == 0
    assert [len(hosts) for hosts, _ in theatre.started] == [2, 2]
    assert [kind for _, kind, _ in theatre.answered] == [AnswerKind.WAIT, AnswerKind.REFUSED]
    assert "join again" in theatre.answered[1][2]


@pytest.mark.parametrize(
    ("host", "versions", "silent", "why"),
    [
        ("here-2", "2", (), "same software"),
        ("here-1", "1", (), "a part of the run already"),
        ("elsewhere", "1", (), "not in `plan.cluster`"),
        ("here-2", "1", ("here-2",), "starts no process"),
    ],
)
def test_hosts_that_cannot_take_part_disturb_nothing(
    tmp_path: Path, host: str, versions: str, silent: Sequence[str], why: str
) -> None:
    theatre = Theatre(tmp_path / "run", [Act(step=STEPS, ends=True)], silent=silent)
    theatre.requests.append(JoinRequest(host=host, versions=versions, nonce="n"))
    assert play(tmp_path, theatre) == 0
    assert theatre.wishes == [[None, None]]
    assert [kind for _, kind, _ in theatre.answered] == [AnswerKind.REFUSED]
    assert why in theatre.answered[0][2]


def test_a_new_plan_is_kept_while_the_same_hosts_are_there(tmp_path: Path) -> None:
    both = ("here-0", "here-1")
    acts = [
        Act(step=4, ends=True, adopts=True),
        Act(step=5, code=1),
        Act(step=6),
        Act(step=STEPS, ends=True),
    ]
    theatre = Theatre(tmp_path / "run", acts, answers_by=[both, ["here-0"]])
    own = subcluster(topo.load(CLUSTER), (0, 1), name="measured")
    two_replicas = decided(stages=1, replicas=2)
    new = default_plan(two_replicas, own, num_layers=6, batch=8, tied=True)
    (tmp_path / CLUSTER_FILE).write_text(cluster_toml(own))
    write_plan(new, own, tmp_path / PLAN_FILE)
    assert play(tmp_path, theatre) == 0
    named = [f"plan.{field}={tmp_path}/run/drift-{field}-4.toml" for field in ("cluster", "plan")]
    named[1] = named[1].replace("plan.plan", "plan.file")
    by_plan = [set(named) <= set(request.settings) for _, request in theatre.started]
    assert by_plan == [False, True, True, False]
    assert [hosts for hosts, _ in theatre.started] == [both, both, both, ("here-0",)]
    assert theatre.shown[0].splitlines() == [
        "attempt 1 stopped for a new plan: 1 s a step in place of 4 s, simulated over the measured "
        "links",
        "attempt 2 continues from step 4: 1 stage x 2 replicas on here-0, here-1",
    ]


def test_an_error_that_recurs_ends_the_run(tmp_path: Path) -> None:
    raised = Cause(kind=CauseKind.ERROR, message="ValueError: no", rank=1)
    acts = [Act(step=5, code=1), *[Act(code=1, cause=raised)] * 2]
    theatre = Theatre(tmp_path / "run", acts, answers_by=[("here-0", "here-1")] * 3)
    assert play(tmp_path, theatre) == 1
    assert "no further attempt" in theatre.shown[-1]


def test_restarts_have_an_end(tmp_path: Path) -> None:
    acts = [Act(step=step, code=1) for step in (1, 2, 3)]
    theatre = Theatre(tmp_path / "run", acts, answers_by=[("here-0", "here-1")] * 3)
    assert play(tmp_path, theatre) == 1
    assert len(theatre.started) == 3


@pytest.mark.parametrize(
    ("code", "ended", "step", "was_asked", "expected"),
    [
        (0, True, STEPS, False, EndKind.DONE),
        (0, True, STEPS, True, EndKind.DONE),
        (0, True, 7, True, EndKind.JOINED),
        (0, True, 7, False, EndKind.STOPPED),
        (0, False, 7, True, EndKind.FAILED),
        (143, True, 7, True, EndKind.STOPPED),
        (2, False, 7, False, EndKind.WRONG_INPUT),
        (1, False, 7, True, EndKind.FAILED),
    ],
)
def test_how_an_attempt_has_ended(
    tmp_path: Path, code: int, ended: bool, step: int, was_asked: bool, expected: EndKind
) -> None:
    folder = begin_checkpoint(tmp_path, step=step)
    commit(folder, write_shard(folder, "stage-0", {"a": np.ones(3)}), {})
    if ended:
        mark_ended(tmp_path)
    assert end_of(code, tmp_path, steps=STEPS, was_asked=was_asked) is expected
