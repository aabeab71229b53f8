"""kill -9 of a process that others need: `mpirun`, or `jaxpipe emulate` with a run in it.

Nothing survives its launcher: no rank, and no file in shared memory or folder of Open MPI longer
than to the next start. An emulation needs root; without it, each trial kills `mpirun`.
"""

import random
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from jaxpipe.chaos.harness.processes import psutil, wait_for_ends
from jaxpipe.chaos.harness.tiny_run import started, wait_for_ranks, wait_for_steps, write_config
from jaxpipe.chaos.harness.trial import Family, Setup, Trial, expect, tried
from jaxpipe.runtime.process.job_folder import SHARED_MEMORY, remove_left_behind
from jaxpipe.topo.emulate.engine import check_machine
from jaxpipe.topo.emulate.namespaces import locked, sweep
from jaxpipe.topo.emulate.owner import owned

CLUSTER = "laptop"
_NEVER = 10**6
_GONE_WITHIN_S = 10.0


def _trials(setup: Setup) -> Iterator[Trial]:
    for seed in range(setup.seed, setup.seed + setup.num_trials):
        chance = random.Random(seed)
        folder = setup.folder / f"seed-{seed}"
        config = write_config(folder, setup.dataset, train={"steps": _NEVER, "eval_every": _NEVER})
        kill = _kill_emulation if seed % 2 and can_emulate() else _kill_mpirun
        name = "emulate" if kill is _kill_emulation else "mpirun"
        after_s = chance.uniform(0.0, 1.0)
        yield tried(
            f"kill -9 of {name}, {after_s:.2f} s after a step",
            partial(kill, config, setup.dataset, after_s=after_s),
        )


def can_emulate() -> bool:
    """Return whether this machine and this user can make namespaces."""
    try:
        check_machine()
    except ValueError:
        return False
    return True


def _kill_mpirun(config: Path, dataset: Path, figures: dict[str, float], *, after_s: float) -> None:
    with started(config, dataset) as run:
        wait_for_ranks(run)
        wait_for_steps(run, steps=1)
        time.sleep(after_s)
        run.ranks()  # notes the memory that they share
        job, folders = run.job(), _job_folders(run.process.pid)
        psutil.Process(run.process.pid).children()[0].kill()  # mpirun is its only child
        begin_s = time.monotonic()
        figures["gone_s"] = wait_for_ends(job, timeout_s=_GONE_WITHIN_S) - begin_s
        code = run.wait(timeout_s=_GONE_WITHIN_S)
    expect(code not in (0, 2), f"the run ends with exit code {code}")
    expect(bool(folders), "the job has no folder for its shared memory")
    left = [folder.name for folder in folders if folder.exists()]
    expect(not left, f"left behind: {', '.join(left)}")


def _kill_emulation(
    config: Path, dataset: Path, figures: dict[str, float], *, after_s: float
) -> None:
    before = (sys.executable, "-P", "-m", "jaxpipe", "emulate", CLUSTER, "--")
    with started(config, dataset, before=before) as run:
        wait_for_ranks(run)
        wait_for_steps(run, steps=1)
        time.sleep(after_s)
        run.ranks()
        job, emulation = run.job(), run.process.pid
        run.process.kill()
        begin_s = time.monotonic()
        figures["gone_s"] = wait_for_ends(job, timeout_s=_GONE_WITHIN_S) - begin_s
        # The next start of a job and of an emulation do both.
        remove_left_behind()
        with locked():
            sweep()
    left = [name for owner, names in owned().items() if owner.pid == emulation for name in names]
    expect(not left, f"left behind: {', '.join(left)}")


def _job_folders(launcher: int) -> list[Path]:
    return list(SHARED_MEMORY.glob(f"jaxpipe-{launcher}-*"))


ORPHAN = Family(
    name="orphan",
    does="kill -9 of mpirun, or of `jaxpipe emulate` with a run in it",
    aim=f"the job gone within {_GONE_WITHIN_S:g} s, nothing left behind",
    num_trials=1,
    num_trials_full=8,
    trials=_trials,
)
