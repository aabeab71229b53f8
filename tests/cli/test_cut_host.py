"""A host loses all its links: the job ends in bounded time, and `jaxpipe run` starts it again."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxpipe.runtime.metrics.records import read_metrics
from jaxpipe.runtime.watchdog import CauseKind, read_cause
from tests.cli.conftest import WriteConfig
from tests.cli.test_faults import ENDLESS, ranks, wait_for_steps
from tests.cli.test_runs import JAXPIPE, REPOSITORY
from tests.topo.emulate.machine import leftovers, needs_namespaces

_DEVICES = ("control", "link0")
"""The way of `mpirun` to its daemon, and that of the ranks' messages."""


def wait_until(is_so: Callable[[], object], *, timeout_s: float, what: str) -> None:
    begin_s = time.monotonic()
    while not is_so():
        assert time.monotonic() - begin_s < timeout_s, what
        time.sleep(0.05)


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout


@pytest.mark.root
@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_continues_after_a_host_has_lost_its_links(
    write_config: WriteConfig, tmp_path: Path
) -> None:
    needs_namespaces()
    plan = {"cluster": "two-region", "stages": 2, "replicas": 1}
    config = write_config(plan=plan, train=ENDLESS, checkpoint={"every": 5})
    folder, log = tmp_path / "run", tmp_path / "log"
    command = [*JAXPIPE, "emulate", "two-region", "--", *JAXPIPE, "run", str(config)]
    with (
        log.open("w") as file,
        subprocess.Popen(command, stdout=file, stderr=file, cwd=REPOSITORY) as process,
    ):
        try:
            wait_for_steps(folder)
            host = ip("netns", "identify", str(ranks(config)[1].pid)).strip()
            routes = [r for r in ip("-n", host, "route").splitlines() if "kernel" not in r]
            for device in _DEVICES:
                ip("-n", host, "link", "set", device, "down")
            wait_until(lambda: read_cause(folder), timeout_s=60, what="no cause")
            cause = read_cause(folder)
            assert cause is not None
            # Its processes still run, and share the folder: what is lost is the way to them.
            assert cause.kind is CauseKind.LINK, cause
            assert "rank 0 on ohio-0 and rank 1 on ohio-1" in cause.message
            wait_until(
                lambda: "attempt 2 continues from step " in log.read_text(),
                timeout_s=60,  # ten to end in order, ten until it is killed
                what=log.read_text(),
            )
            for device in _DEVICES:
                ip("-n", host, "link", "set", device, "up")
            for route in routes:
                ip("-n", host, "route", "replace", *route.split())
            reached = read_metrics(folder / "metrics.jsonl")[-1].step
            wait_for_steps(folder, steps=reached + 5)
        finally:
            process.terminate()
            process.wait(60)
    assert leftovers(process.pid) == []
