"""The watchdog of a job: its deadlines fit the timeouts of the job's own waits."""

from pathlib import Path

import pytest

from jaxpipe.config import config_from, job_from
from jaxpipe.propose.resolve import plan_from
from jaxpipe.runtime.watchdog.of_job import StartWork, begin_work, start_watchdog
from tests.runtime.training import tiny_tree


@pytest.mark.parametrize(("hang_s", "limit_s"), [(2.0, 45.0), (50.0, 50.0)])
def test_a_wait_is_judged_before_its_own_timeout(
    tmp_path: Path, dataset: Path, hang_s: float, limit_s: float
) -> None:
    """An error of the wait would come first otherwise, and it does not name the link."""
    config = config_from(tiny_tree(tmp_path, dataset, run={"timeout_s": 60.0, "hang_s": hang_s}))
    watch = start_watchdog(job_from(config, plan_from(config)), rank=0)
    deadlines = watch._deadlines  # pyright: ignore[reportPrivateUsage]
    assert deadlines.limit_s("never seen") == limit_s
    assert deadlines.limit_s(None) == 60.0, "a save, or an island that waits for others"


def test_a_rank_that_compiles_is_never_late_and_one_that_waits_for_it_is(
    tmp_path: Path, dataset: Path
) -> None:
    """In time to look for ranks that are stopped, before the wait itself ends."""
    timeouts = {"timeout_s": 60.0, "startup_timeout_s": 40.0}
    config = config_from(tiny_tree(tmp_path, dataset, run=timeouts))
    job = job_from(config, plan_from(config))
    watch = start_watchdog(job, rank=0)
    (tmp_path / "run" / "watch").mkdir(parents=True)
    late = dict[StartWork, float]()
    for work in StartWork:
        begin_work(watch, job, work)
        for tick in range(1000):
            watch._tick(0.4)  # pyright: ignore[reportPrivateUsage]
            doing = watch._doing  # pyright: ignore[reportPrivateUsage]
            heartbeat = watch._heartbeat(doing)  # pyright: ignore[reportPrivateUsage]
            assert (heartbeat.step, heartbeat.doing) == (0, work.value)
            if heartbeat.overdue:
                late[work] = 0.4 * tick
                break
        assert not watch.is_watching, "a signal has nothing to save"
    assert late == {
        work: pytest.approx(30.0, abs=0.8) for work in (StartWork.COMPILED, StartWork.CLOCKS)
    }
