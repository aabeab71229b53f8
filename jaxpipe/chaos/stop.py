"""SIGSTOP of a rank: it is detected and named; without a fault, no rank ever is (calm).

A calm run is also the one in which memory is watched: what each step or save keeps adds up.
"""

import os
import signal
import time

import numpy as np

from jaxpipe.chaos.harness.fault_plan import FaultPlan, write_fault_plan
from jaxpipe.chaos.harness.processes import wait_for_ends
from jaxpipe.chaos.harness.starved import busy
from jaxpipe.chaos.harness.tiny_run import ENDLESS, NUM_RANKS, Started, started, write_config
from jaxpipe.chaos.harness.trial import Case, Family, expect, one_by_one
from jaxpipe.runtime.metrics.records import read_metrics
from jaxpipe.runtime.watchdog import CauseKind, read_cause

_FOUND_WITHIN_S = 3.0
_TIMES = 5.0
_SETTLED_STEPS = 15
"""Steps after which a rank has learned how long they take."""
_CALM_STEPS = 5000
_BUSY_STEPS, _LOAD = 10_000, 4
"""The steps of a run on cores that have this many other processes each."""
_FIRST_LOOK, _LOOKS_BEFORE = 500, 100
"""The memory of a rank may not grow from this step to the last one but this number of steps."""
_MOST_GROWN_MB = 16.0
_COMPILE_S = 10.0
_CALM_WITHIN_S = 3600.0


def _trial(case: Case) -> None:
    chance = case.chance()
    victim, after_s = chance.randrange(NUM_RANKS), chance.uniform(0.0, 2.0)
    case.name = f"rank {victim}, {after_s:.2f} s after step {_SETTLED_STEPS}"
    # Without saves and evaluations, which would make single steps longer.
    rarely = {"every": ENDLESS["steps"]}
    config = write_config(case.folder, case.dataset, train=ENDLESS, checkpoint=rarely)
    with started(config, case.dataset) as run:
        ranks = run.settle(steps=_SETTLED_STEPS, after_s=after_s)
        # The limit follows from the steps before the stop, as the watchdog's own does.
        job, limit_s = run.job(), _limit_s(run)
        ranks[victim].send_signal(signal.SIGSTOP)
        begin_s = time.monotonic()
        run.wait_until(
            lambda: read_cause(run.folder) is not None, what="it is detected", timeout_s=60.0
        )
        case.figures["found_s"] = found_s = time.monotonic() - begin_s
        case.figures["limit_s"] = limit_s
        case.figures["gone_s"] = wait_for_ends(job, timeout_s=60.0) - begin_s
        code = run.wait(timeout_s=60.0)
    cause = read_cause(run.folder)
    assert cause is not None, "it was there"
    expect(code not in (0, 2), f"the run ends with exit code {code}")
    is_right = (cause.rank, cause.kind) == (victim, CauseKind.STOPPED)
    expect(is_right, f"rank {victim} was stopped, but the cause is: {cause}")
    expect(found_s <= limit_s, f"detected after {found_s:.2f} s, the limit is {limit_s:.2f} s")


def _limit_s(run: Started) -> float:
    """Return the limit: five of the longest waits; a wait ends within its step."""
    steps_s = [each.step_s for each in read_metrics(run.folder / "metrics.jsonl")]
    # Without the first step, which need not be like the others.
    return max(_FOUND_WITHIN_S, _TIMES * float(np.percentile(steps_s[1:], 99)))


def _stay_calm(case: Case) -> None:
    is_busy = bool(case.seed % 2)
    steps = _BUSY_STEPS if is_busy else _CALM_STEPS
    last_look = steps - _LOOKS_BEFORE
    num_busy = _LOAD * (os.cpu_count() or 1) if is_busy else 0
    case.name = f"{steps} steps{f' beside {num_busy} busy processes' if is_busy else ''}"
    config = write_config(
        case.folder,
        case.dataset,
        run={"seed": case.seed},
        train={"steps": steps, "eval_every": 500},
        checkpoint={"every": 100},  # saving threads once kept the memory that they had used
    )
    write_fault_plan(config, FaultPlan(compile_s=_COMPILE_S))
    begin_s = time.monotonic()
    arguments = ("--hooks", "jaxpipe.chaos.harness.injector:injector")
    with busy(num_busy), started(config, case.dataset, arguments=arguments) as run:
        looks = list[dict[int, int]]()
        for step in (_FIRST_LOOK, last_look):
            run.wait_for_steps(step, timeout_s=_CALM_WITHIN_S)
            looks.append({rank: each.memory_info().rss for rank, each in run.ranks().items()})
        code = run.wait(timeout_s=_CALM_WITHIN_S)
    case.figures["run_s"] = time.monotonic() - begin_s
    case.figures["slow_lines"] = float(run.stderr.count("slow, not stopped"))
    case.figures["load"] = os.getloadavg()[0]
    first, last = looks
    case.figures["grown_mb"] = grown_mb = max(last[rank] - first[rank] for rank in first) / 1e6
    expect(grown_mb <= _MOST_GROWN_MB, f"the memory of a rank has grown by {grown_mb:.1f} MB")
    expect(code == 0, f"the run ends with exit code {code}: {read_cause(run.folder)}")
    expect(read_cause(run.folder) is None, f"a false alarm: {read_cause(run.folder)}")
    expect(run.num_steps() == steps, f"the metrics hold {run.num_steps()} steps")


STOP = Family(
    name="stop",
    does="SIGSTOP of one of 4 ranks at any time of a run that has settled",
    aim=f"detected within max({_FOUND_WITHIN_S:g} s, {_TIMES:g} x p99 of a step), the right rank "
    "named, the job gone, nothing left behind",
    num_trials=1,
    num_trials_full=30,
    trials=one_by_one(_trial),
)

CALM = Family(
    name="calm",
    does=f"nothing, for {_CALM_STEPS:,} steps after a compilation of {_COMPILE_S:g} s; or for "
    f"{_BUSY_STEPS:,} steps beside {_LOAD} busy processes for each core",
    aim=f"no false alarm; the memory of a rank grows by at most {_MOST_GROWN_MB:g} MB",
    num_trials=0,
    num_trials_full=2,
    trials=one_by_one(_stay_calm),
)
