"""The watchdog of a job: its deadlines fit the timeouts of the job's own waits."""

from pathlib import Path

import pytest

from jaxpipe.config import config_from, job_from
from jaxpipe.propose.resolve import plan_from
from jaxpipe.runtime.watchdog.of_job import start_watchdog
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
