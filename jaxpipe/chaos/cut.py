"""A host loses all its links, for 1, 10 or 60 seconds or until the next attempt. Needs root.

In three of four trials, four ranks train on four hosts in namespaces, each with a disk of its own,
under `jaxpipe run --hosts`; one host is cut off for some seconds. Its processes stay. Either
messages arrive late, and nothing else happens, or the others continue without it; its ranks must
end then, before the links are back or after that, and must not disturb the attempt that trains on.

In the others, two ranks train in two namespaces of `jaxpipe emulate` that share their disk. The
links of one go down: the way of its rank to the other, and that of `mpirun` to its daemon. Its
processes stay, so the launcher has nobody to wait for. The link is named, and `jaxpipe run` starts
the next attempt. Once it begins, the links return, and it trains on.
"""

import sys
import time
from collections.abc import Callable

from jaxpipe.chaos.harness.emulated_hosts import NUM_HOSTS, cut_off, hosts_run, ip, over_hosts
from jaxpipe.chaos.harness.tiny_run import ENDLESS, Started, started, write_config
from jaxpipe.chaos.harness.trial import Case, Family, expect
from jaxpipe.runtime.process.job_folder import remove_left_behind
from jaxpipe.runtime.watchdog import CauseKind, read_cause

_DURATIONS_S = (1.0, 10.0, 60.0)
_CLUSTER = "two-region"
_HOSTS = ("ohio-0", "ohio-1")
_ENDS_WITHIN_S = 90.0
_STEPS_AFTER = 5


def _trial(case: Case) -> None:
    kind, chance = case.seed % (len(_DURATIONS_S) + 1), case.chance()
    if kind == len(_DURATIONS_S):
        victim = chance.randrange(len(_HOSTS))
        case.name = f"the links of {_HOSTS[victim]} go down"
        _cut_until_next(case, victim)
    else:  # any host but that of the supervisor
        victim, after_s = chance.randrange(1, NUM_HOSTS), chance.uniform(0.0, 2.0)
        case.name = f"host {victim} is cut off for {_DURATIONS_S[kind]:g} s"
        _cut_for(case, victim, after_s, _DURATIONS_S[kind])


def _cut_for(case: Case, victim: int, after_s: float, seconds: float) -> None:
    with hosts_run(case.folder, case.dataset) as run:
        run.settle(after_s=after_s)
        cut, begin_s = cut_off(run.emulation.owner.namespace(victim)), time.monotonic()
        try:
            time.sleep(seconds)
        finally:
            cut.reconnect()
        case.figures["cut_s"] = time.monotonic() - begin_s
        run.finish(case)
        case.figures["attempts"] = 1.0 + run.started.stdout.count(" continues from step ")


def _cut_until_next(case: Case, victim: int) -> None:
    config = write_config(
        case.folder,
        case.dataset,
        plan={"cluster": _CLUSTER, "stages": 2, "replicas": 1, "schedule": "1f1b"},
        train=ENDLESS,
        checkpoint={"every": 5},
    )
    before = (sys.executable, "-P", "-m", "jaxpipe", "emulate", _CLUSTER, "--")
    with started(config, case.dataset, command="run", before=before) as run:
        run.wait_for_steps(_STEPS_AFTER)
        host = ip("netns", "identify", str(run.ranks()[victim].pid)).strip()
        cut = cut_off(host)
        begin_s = time.monotonic()
        _wait(run, lambda: read_cause(run.folder) is not None, what="there is a cause")
        case.figures["found_s"] = time.monotonic() - begin_s
        cause = read_cause(run.folder)
        assert cause is not None, "it was there"
        _wait(run, lambda: "attempt 2 continues" in run.stdout, what="the next attempt begins")
        case.figures["next_attempt_s"] = time.monotonic() - begin_s
        cut.reconnect()
        reached = run.num_steps()
        run.wait_for_steps(reached + _STEPS_AFTER)
        run.process.terminate()
        run.wait(timeout_s=_ENDS_WITHIN_S)
        remove_left_behind()
    between = " and ".join(f"rank {rank} on {name}" for rank, name in enumerate(_HOSTS))
    is_right = cause.kind is CauseKind.LINK and between in cause.message
    expect(is_right, f"the link between {between} was cut, but the cause is: {cause}")
    run.expect_no_shrinking()


def _wait(run: Started, is_so: Callable[[], bool], *, what: str) -> None:
    run.wait_until(is_so, what=what, timeout_s=_ENDS_WITHIN_S)


CUT = Family(
    name="cut",
    does="take all links of a host down, for 1, 10 or 60 s or until the next attempt (namespaces)",
    aim="the link named, not a rank; the next attempt trains on; no sample lost or doubled; losses "
    "equal to an undisturbed run's within 0.001 of them",
    num_trials=0,
    num_trials_full=20,
    trials=over_hosts(_trial, name="cut"),
)
