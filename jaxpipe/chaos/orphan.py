"""kill -9 of a process that others need: `mpirun`, or `jaxpipe emulate` with a run in it.

Nothing survives its launcher: no rank, and no file in shared memory or folder of Open MPI longer
than to the next start. An emulation needs root; without it, each trial kills `mpirun`.
"""

import sys
import time
from pathlib import Path

from jaxpipe.chaos.harness.emulated_hosts import can_emulate
from jaxpipe.chaos.harness.processes import psutil, wait_for_ends
from jaxpipe.chaos.harness.tiny_run import ENDLESS, started, write_config
from jaxpipe.chaos.harness.trial import Case, Family, expect, one_by_one
from jaxpipe.runtime.process.job_folder import SHARED_MEMORY, remove_left_behind
from jaxpipe.topo.emulate.namespaces import locked, sweep
from jaxpipe.topo.emulate.owner import owned

CLUSTER = "laptop"
_GONE_WITHIN_S = 10.0


def _trial(case: Case) -> None:
    is_emulated = case.seed % 2 == 1 and can_emulate()
    name, kill = ("emulate", _kill_emulation) if is_emulated else ("mpirun", _kill_mpirun)
    after_s = case.chance().uniform(0.0, 1.0)
    case.name = f"kill -9 of {name}, {after_s:.2f} s after a step"
    kill(case, write_config(case.folder, case.dataset, train=ENDLESS), after_s)


def _kill_mpirun(case: Case, config: Path, after_s: float) -> None:
    with started(config, case.dataset) as run:
        run.settle(steps=1, after_s=after_s)
        job, folders = run.job(), _job_folders(run.process.pid)
        psutil.Process(run.process.pid).children()[0].kill()  # mpirun is its only child
        begin_s = time.monotonic()
        case.figures["gone_s"] = wait_for_ends(job, timeout_s=_GONE_WITHIN_S) - begin_s
        code = run.wait(timeout_s=_GONE_WITHIN_S)
    expect(code not in (0, 2), f"the run ends with exit code {code}")
    expect(bool(folders), "the job has no folder for its shared memory")
    left = [folder.name for folder in folders if folder.exists()]
    expect(not left, f"left behind: {', '.join(left)}")


def _kill_emulation(case: Case, config: Path, after_s: float) -> None:
    before = (sys.executable, "-P", "-m", "jaxpipe", "emulate", CLUSTER, "--")
    with started(config, case.dataset, before=before) as run:
        run.settle(steps=1, after_s=after_s)
        job, emulation = run.job(), run.process.pid
        run.process.kill()
        begin_s = time.monotonic()
        case.figures["gone_s"] = wait_for_ends(job, timeout_s=_GONE_WITHIN_S) - begin_s
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
    trials=one_by_one(_trial),
)
