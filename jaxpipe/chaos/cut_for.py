"""A host loses all its links for 1, 10 or 60 seconds, and has them back.

Four ranks train on four hosts in namespaces, each with a disk of its own, under `jaxpipe run
--hosts`. The processes of the host that is cut off stay. Either messages arrive late, and nothing
else happens, or the others continue without it; its ranks must end then, before the links are back
or after that, and must not disturb the attempt that trains on. Needs root.
"""

import random
import time
from functools import partial

from jaxpipe.chaos.harness.links import cut_off
from jaxpipe.chaos.harness.own_hosts import (
    NUM_HOSTS,
    STEPS_BEFORE,
    Case,
    hosts_run,
)
from jaxpipe.chaos.harness.trial import Trial, tried

DURATIONS_S = (1.0, 10.0, 60.0)


def trial_of(case: Case, *, seconds: float) -> Trial:
    """Cut a random host but that of the supervisor off."""
    chance = random.Random(case.seed)
    victim, after_s = chance.randrange(1, NUM_HOSTS), chance.uniform(0.0, 2.0)
    work = partial(_trial, case, victim, after_s, seconds)
    return tried(f"host {victim} is cut off for {seconds:g} s", work)


def _trial(
    case: Case, victim: int, after_s: float, seconds: float, figures: dict[str, float]
) -> None:
    with hosts_run(case.folder, case.dataset) as run:
        run.wait_for_steps(STEPS_BEFORE)
        time.sleep(after_s)
        cut, begin_s = cut_off(run.emulation.owner.namespace(victim)), time.monotonic()
        try:
            time.sleep(seconds)
        finally:
            cut.reconnect()
        figures["cut_s"] = time.monotonic() - begin_s
        run.finish(case, figures)
        figures["attempts"] = 1.0 + run.started.stdout.count(" continues from step ")
