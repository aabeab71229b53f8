"""A host loses all its links: the link is named, and `jaxpipe run` starts the next attempt.

Two ranks train in two namespaces of `jaxpipe emulate`. The links of one go down: the way of its
rank to the other, and that of `mpirun` to its daemon. Its processes stay, so the launcher has
nobody to wait for. Once the next attempt begins, the links return, and it trains on. Needs root.
"""

import logging
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from jaxpipe.chaos.harness.tiny_run import (
    Started,
    started,
    wait_for_steps,
    wait_until,
    write_config,
)
from jaxpipe.chaos.harness.trial import Family, Setup, Trial, expect, tried
from jaxpipe.chaos.orphan import can_emulate
from jaxpipe.errors import RunError
from jaxpipe.runtime.process.job_folder import remove_left_behind
from jaxpipe.runtime.watchdog import CauseKind, read_cause
from jaxpipe.topo.emulate import EmulationError
from jaxpipe.topo.emulate.commands import run as run_program

logger = logging.getLogger(__name__)

_CLUSTER = "two-region"
_HOSTS = ("ohio-0", "ohio-1")
_DEVICES = ("control", "link0")
_NEVER = 10**6
_ENDS_WITHIN_S = 90.0
_STEPS_AFTER = 5


def _trials(setup: Setup) -> Iterator[Trial]:
    if not can_emulate():
        logger.warning("cut: not tried, because network namespaces need root and `ip`")
        return
    for seed in range(setup.seed, setup.seed + setup.num_trials):
        victim = random.Random(seed).randrange(len(_HOSTS))
        config = write_config(
            setup.folder / f"seed-{seed}",
            setup.dataset,
            plan={"cluster": _CLUSTER, "stages": 2, "replicas": 1, "schedule": "1f1b"},
            train={"steps": _NEVER, "eval_every": _NEVER},
            checkpoint={"every": 5},
        )
        work = partial(_trial, config, setup.dataset, victim)
        yield tried(f"the links of {_HOSTS[victim]} go down", work)


def _trial(config: Path, dataset: Path, victim: int, figures: dict[str, float]) -> None:
    before = (sys.executable, "-P", "-m", "jaxpipe", "emulate", _CLUSTER, "--")
    with started(config, dataset, command="run", before=before) as run:
        wait_for_steps(run, steps=_STEPS_AFTER)
        host = ip("netns", "identify", str(run.ranks()[victim].pid)).strip()
        routes = [line for line in ip("-n", host, "route").splitlines() if "kernel" not in line]
        _set_links(host, "down")
        begin_s = time.monotonic()
        _wait(run, lambda: read_cause(run.folder) is not None, what="there is a cause")
        figures["found_s"] = time.monotonic() - begin_s
        cause = read_cause(run.folder)
        assert cause is not None, "it was there"
        _wait(run, lambda: "attempt 2 continues" in run.stdout, what="the next attempt begins")
        figures["next_attempt_s"] = time.monotonic() - begin_s
        _set_links(host, "up")
        for route in routes:  # a device that goes down loses them
            ip("-n", host, "route", "replace", *route.split())
        reached = run.num_steps()
        wait_for_steps(run, steps=reached + _STEPS_AFTER)
        run.process.terminate()
        run.wait(timeout_s=_ENDS_WITHIN_S)
        remove_left_behind()
    between = " and ".join(f"rank {rank} on {name}" for rank, name in enumerate(_HOSTS))
    is_right = cause.kind is CauseKind.LINK and between in cause.message
    expect(is_right, f"the link between {between} was cut, but the cause is: {cause}")
    expect("with fewer ranks" not in run.stdout, f"it has shrunk: {run.stdout[-600:]}")


def _wait(run: Started, is_so: Callable[[], bool], *, what: str) -> None:
    wait_until(is_so, run, what=what, timeout_s=_ENDS_WITHIN_S)


def _set_links(host: str, state: str) -> None:
    for device in _DEVICES:
        ip("-n", host, "link", "set", device, state)


def ip(*words: str) -> str:
    """Run `ip`, and return its output.

    Raises:
        RunError: it failed.
    """
    try:
        return run_program("ip", *words)
    except EmulationError as error:
        raise RunError(str(error)) from error


CUT = Family(
    name="cut",
    does="take all links of a host down, in namespaces, under `jaxpipe run` (needs root)",
    aim="the link named, not a rank; the next attempt has all ranks, and trains on",
    num_trials=0,
    num_trials_full=4,
    trials=_trials,
)
