"""A rank that gets a thousandth of a core for a while is slow: it is named so, and nothing ends."""

import time
from contextlib import AbstractContextManager

from jaxpipe.chaos.harness.starved import can_limit, in_turn, limited
from jaxpipe.chaos.harness.tiny_run import started, write_config
from jaxpipe.chaos.harness.trial import Case, Family, expect, one_by_one
from jaxpipe.runtime.watchdog import read_cause

_STARVED_S = 45.0
"""Longer than any silence that a rank on another host may keep."""
_SETTLED_STEPS, _MORE_STEPS = 20, 20
_TIMEOUT_S = 600.0
"""Of a message: a step that takes 0.1 s of a core takes 100 s of a thousandth."""
_SLOW = "slow, not stopped"


def _trial(case: Case) -> None:
    victim, by_group = case.seed % 2, case.seed // 2 % 2 > 0 and can_limit()
    by = "a quota" if by_group else "SIGSTOP and SIGCONT"
    case.name = f"rank {victim} for {_STARVED_S:g} s by {by}"
    config = write_config(
        case.folder,
        case.dataset,
        run={"timeout_s": _TIMEOUT_S},
        plan={"replicas": 1},
        train={"steps": 100_000, "eval_every": 100_000},
        checkpoint={"every": 100_000},
    )
    with started(config, case.dataset) as run:
        run.wait_until(lambda: len(run.ranks()) == 2, what="both ranks", timeout_s=_TIMEOUT_S)
        run.wait_for_steps(_SETTLED_STEPS)
        process = run.ranks()[victim].pid
        starves: AbstractContextManager[None] = (limited if by_group else in_turn)(process)
        before = run.num_steps()
        with starves:
            end_s = time.monotonic() + _STARVED_S
            run.wait_until(
                lambda: time.monotonic() > end_s, what=case.name, timeout_s=2 * _STARVED_S
            )
        during = run.num_steps()
        run.wait_for_steps(during + _MORE_STEPS)
        case.figures["steps"] = float(during - before)
        case.figures["lines"] = float(run.stderr.count(_SLOW))
        cause = read_cause(run.folder)
        run.process.terminate()
        code = run.wait(timeout_s=_TIMEOUT_S)
    expect(cause is None, f"rank {victim} was slow, but the cause is: {cause}")
    expect(code == 143, f"the run ends with exit code {code}: {run.stderr[-300:]}")
    expect(case.figures["lines"] > 0, f"no line says that a rank is {_SLOW}: {run.stderr[-300:]}")


STARVE = Family(
    name="starve",
    does=f"a thousandth of a core for one of two ranks, for {_STARVED_S:g} s: by SIGSTOP and "
    "SIGCONT in turn, or, with root, by a quota of a cgroup",
    aim="a line says that it is slow; no cause, no restart; the run continues afterwards",
    num_trials=1,
    num_trials_full=4,
    trials=one_by_one(_trial),
)
