"""A run of islands, one of which was killed and came late, is replayed bit for bit from its log."""

import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from jaxpipe.comm.local import run_ranks
from jaxpipe.config import Config, cluster_from, config_from, job_from, keep_inputs
from jaxpipe.outer.merge_log import Began, Given, Merge, MergeEvent
from jaxpipe.outer.quorum import Merger
from jaxpipe.plan import ResolvedPlan
from jaxpipe.propose.resolve import plan_from
from jaxpipe.run.folder.prepare_run import write_resolved_plan
from jaxpipe.run.folder.start_from import check_start_from, start_from
from jaxpipe.run.quorum.merge_log_file import MergeLog, logged_run
from jaxpipe.run.quorum.replay_folders import replay_folders
from jaxpipe.run.quorum.replay_islands import Replayed, ReplayedRun, merged_by, replay
from jaxpipe.runtime.checkpoint import latest, open_checkpoint
from jaxpipe.runtime.checkpoint.stores import committed
from jaxpipe.runtime.metrics.records import StepMetrics
from jaxpipe.runtime.step import worker
from jaxpipe.runtime.train import train
from tests.run.quorum.islands import BATCH, Serving, serving
from tests.runtime.training import compile_stage_once, small_tree

pytestmark = pytest.mark.slow

QUORUM: dict[str, Any] = {
    "server": "in this process",
    "islands": 2,
    "every": 2,
    "least": 1,
    "grace_s": 0.1,
    "codec": "int8",
    "timeout_s": 60.0,
}


class KilledError(Exception):
    """The end of a process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """A log, and the islands that it is of."""

    events: tuple[MergeEvent, ...]
    islands: tuple[Config, ...]


def island(folder: Path, dataset: Path, number: int, **sections: dict[str, Any]) -> Config:
    # The second one has other ranks, and another optimizer in shards.
    plan = {"stages": 2, "replicas": 1} if number == 0 else {"stages": 1, "replicas": 2}
    tree = small_tree(
        folder / f"island-{number}",
        dataset,
        plan=plan,
        train={"batch": BATCH, "steps": 12 if number == 0 else 8},
        checkpoint={"every": 3},
        optimizer={"sharded": number == 1, "schedule": "constant"},
        **sections,
    )
    return config_from({**tree, "quorum": {**QUORUM, "island": number}})


def run_island(
    served: Serving,
    config: Config,
    *,
    resume: bool = False,
    observe: Callable[[StepMetrics], None] = lambda _: None,
) -> None:
    plan = plan_from(config)
    job = job_from(config, plan)
    line = served.line(config.quorum)

    def work(transport: Any) -> None:
        with_line = replace(job, line=line) if transport.rank == 0 else job
        saved = open_checkpoint(latest(job.folder)) if resume else None
        train(with_line, transport, checkpoint=saved, observe=observe)

    try:
        run_ranks(plan.num_ranks, work)
    except KilledError:
        line._drop()  # pyright: ignore[reportPrivateUsage]


def until(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.01)


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> Logged:
    folder = tmp_path_factory.mktemp("replay")
    islands = tuple(island(folder, dataset, number) for number in range(2))

    def kill(metrics: StepMetrics) -> None:
        if metrics.step == 4:
            until(lambda: 3 in committed(Path(islands[1].run.folder)))
            raise KilledError

    with (
        patch.object(worker, "compile_stage", compile_stage_once),
        serving(islands[0].quorum) as served,
        ThreadPoolExecutor(1) as pool,
    ):
        run_island(served, islands[1], observe=kill)
        before = len(served.merges)
        running = pool.submit(run_island, served, islands[0])
        until(lambda: len(served.merges) > before or running.done())
        run_island(served, islands[1], resume=True)
        running.result(timeout=300)
        served.thread.join(timeout=60)
    return Logged(events=tuple(served.events), islands=islands)


def replayed(
    logged: Logged, *, events: Sequence[MergeEvent] = (), islands: Sequence[Config] = ()
) -> Replayed:
    log = logged_run(events or logged.events)
    runs = {
        number: ReplayedRun(job=job_from(config, plan_from(config)))
        for number, config in enumerate(islands or logged.islands)
        if number in merged_by(log)
    }
    with patch.object(worker, "compile_stage", compile_stage_once):
        return replay(log, runs, say=print)


def merges(logged: Logged) -> list[Merge]:
    return [event for event in logged.events if isinstance(event, Merge)]


def test_a_run_with_a_killed_island_is_replayed_bit_for_bit(logged: Logged) -> None:
    joins = [(e.island, e.step) for e in logged.events if isinstance(e, Given) and e.joined]
    assert sorted(joins) == [(0, 0), (1, 0), (1, 3)]
    assert replayed(logged) == Replayed(num_merges=len(merges(logged)), difference="")


def with_part(merge: Merge, **fields: Any) -> Merge:
    """Return a merge whose first delivery has other fields."""
    first, *others = merge.islands
    return msgspec.structs.replace(
        merge, islands=(msgspec.structs.replace(first, **fields), *others)
    )


def flipped(digest: str) -> str:
    return f"{int(digest[0], 16) ^ 1:x}{digest[1:]}"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: msgspec.structs.replace(m, digest=flipped(m.digest)), "and all deliveries are"),
        (lambda m: with_part(m, digest=flipped(m.islands[0].digest)), "island . delivers"),
        (
            lambda m: with_part(m, tokens=m.islands[0].tokens + 1),
            "trains on .* tokens, and",
        ),
        (lambda m: with_part(m, weight=0.123), "island . weighs .*, and 0.123 in the log"),
    ],
)
def test_a_changed_line_is_named(
    change: Callable[[Merge], Merge], words: str, logged: Logged
) -> None:
    *_, last = merges(logged)
    events = [change(last) if event is last else event for event in logged.events]
    result = replayed(logged, events=events)
    assert result.num_merges == last.anchor - 1
    assert re.search(f"anchor {last.anchor} differs.*{words}", result.difference), result


def test_another_run_is_named_with_its_island(logged: Logged) -> None:
    second = logged.islands[1]
    rate = replace(second.optimizer, learning_rate=second.optimizer.learning_rate * (1 + 1e-6))
    islands = (logged.islands[0], replace(second, optimizer=rate))
    first = next(m for m in merges(logged) if any(part.island == 1 for part in m.islands))
    result = replayed(logged, islands=islands)
    assert result.num_merges == first.anchor - 1
    assert f"anchor {first.anchor} differs: island 1 delivers" in result.difference


def test_a_server_that_begins_again_with_an_older_anchor_is_replayed(
    tmp_path: Path, dataset: Path
) -> None:
    config = island(tmp_path, dataset, 0)
    shorter = replace(config, train=replace(config.train, steps=6))
    older: list[Merger] = []

    def copy(metrics: StepMetrics) -> None:
        merger = served.server.merger
        assert merger is not None
        if metrics.step == 3:
            states = dict(merger.states)
            older.append(Merger(config=config.quorum, states=states, version=merger.version))

    with patch.object(worker, "compile_stage", compile_stage_once):
        with serving(config.quorum) as served:
            run_island(served, shorter, observe=copy)
        with serving(config.quorum, merger=older[0]) as again:
            run_island(again, config, resume=True)
    events = (*served.events, *again.events)
    assert [event.anchor for event in events if isinstance(event, Began)] == [0, 1]
    result = replayed(Logged(events=events, islands=(config,)))
    assert result == Replayed(num_merges=3 + 3, difference="")


def test_islands_that_began_with_another_run_are_replayed_from_there(
    logged: Logged, tmp_path: Path, dataset: Path
) -> None:
    source, server = Path(logged.islands[0].run.folder), tmp_path / "server"
    config = island(tmp_path, dataset, 0, lora={"rank": 2, "targets": ["attention.*"]})
    start_from(config, source, check_start_from(config, source))
    log = MergeLog(server)
    with patch.object(worker, "compile_stage", compile_stage_once):
        with serving(config.quorum) as served:
            run_island(served, config, resume=True)
        for event in served.events:
            log.add(event)
        log.close()
        cluster = cluster_from(config)
        write_resolved_plan(config, ResolvedPlan.of(plan_from(config), cluster))
        folder = Path(config.run.folder)
        keep_inputs(config, cluster, folder)
        same = replay_folders(server, [folder], source=source, say=print)
        other = replay_folders(server, [folder], say=print)
    assert same == Replayed(num_merges=6, difference="")
    assert (other.num_merges, other.difference[:36]) == (0, "anchor 1 differs: island 0 delivers ")
