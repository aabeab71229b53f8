"""A host loses all its links, for some seconds or until the next attempt.

Three of four trials cut a host off for some seconds (`jaxpipe.chaos.cut_for`). In the others, two
ranks train in two namespaces of `jaxpipe emulate` that share their disk. The links of one go down:
the way of its rank to the other, and that of `mpirun` to its daemon. Its processes stay, so the
launcher has nobody to wait for. The link is named, and `jaxpipe run` starts the next attempt. Once
it begins, the links return, and it trains on. Needs root.
"""

import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from jaxpipe.chaos.cut_for import DURATIONS_S, trial_of
from jaxpipe.chaos.harness.links import cut_off, ip
from jaxpipe.chaos.harness.own_hosts import Case, trials_over_hosts
from jaxpipe.chaos.harness.tiny_run import (
    Started,
    started,
    wait_for_steps,
    wait_until,
    write_config,
)
from jaxpipe.chaos.harness.trial import Family, Setup, Trial, expect, tried
from jaxpipe.runtime.process.job_folder import remove_left_behind
from jaxpipe.runtime.watchdog import CauseKind, read_cause

_CLUSTER = "two-region"
_HOSTS = ("ohio-0", "ohio-1")
_NEVER = 10**6
_ENDS_WITHIN_S = 90.0
_STEPS_AFTER = 5


def _trials(setup: Setup) -> Iterator[Trial]:
    return trials_over_hosts(setup, _one, name="cut")


def _one(case: Case) -> Trial:
    kind = case.seed % (len(DURATIONS_S) + 1)
    if kind < len(DURATIONS_S):
        return trial_of(case, seconds=DURATIONS_S[kind])
    victim = random.Random(case.seed).randrange(len(_HOSTS))
    config = write_config(
        case.folder,
        case.dataset,
        plan={"cluster": _CLUSTER, "stages": 2, "replicas": 1, "schedule": "1f1b"},
        train={"steps": _NEVER, "eval_every": _NEVER},
        checkpoint={"every": 5},
    )
    work = partial(_trial, config, case.dataset, victim)
    return tried(f"the links of {_HOSTS[victim]} go down", work)


def _trial(config: Path, dataset: Path, victim: int, figures: dict[str, float]) -> None:
    before = (sys.executable, "-P", "-m", "jaxpipe", "emulate", _CLUSTER, "--")
    with started(config, dataset, command="run", before=before) as run:
        wait_for_steps(run, steps=_STEPS_AFTER)
        host = ip("netns", "identify", str(run.ranks()[victim].pid)).strip()
        cut = cut_off(host)
        begin_s = time.monotonic()
        _wait(run, lambda: read_cause(run.folder) is not None, what="there is a cause")
        figures["found_s"] = time.monotonic() - begin_s
        cause = read_cause(run.folder)
        assert cause is not None, "it was there"
        _wait(run, lambda: "attempt 2 continues" in run.stdout, what="the next attempt begins")
        figures["next_attempt_s"] = time.monotonic() - begin_s
        cut.reconnect()
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


CUT = Family(
    name="cut",
    does="take all links of a host down, for 1, 10 or 60 s or until the next attempt (namespaces)",
    aim="the link named, not a rank; the next attempt trains on; no sample lost or doubled; losses "
    "equal to an undisturbed run's within 0.001 of them",
    num_trials=0,
    num_trials_full=20,
    trials=_trials,
)
