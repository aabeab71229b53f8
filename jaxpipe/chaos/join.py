"""A host joins: the run stops after a step, and continues with it, bit by bit where it stopped.

Two ranks train on two of four hosts in namespaces, each with a disk of its own, under `jaxpipe run
--hosts`. At a random time `jaxpipe join` runs on a third host, which has nothing of the run but the
address and the key. Needs root.
"""

import os
import re
import subprocess
import sys
import time

from jaxpipe.chaos.harness.assertions import ENDS_WITHIN_S
from jaxpipe.chaos.harness.emulated_hosts import (
    STEPS_BEFORE,
    HostsRun,
    hosts_run,
    over_hosts,
)
from jaxpipe.chaos.harness.trial import Case, Family, expect
from jaxpipe.errors import RunError
from jaxpipe.run.hosts.join_words import JOIN_FILE

_NEW = 2
_TWO_HOSTS = {"stages": 2, "replicas": 1, "devices": ["here-0:0", "here-1:0"]}


def _trial(case: Case) -> None:
    after_s = case.chance().uniform(0.0, 2.0)
    case.name = f"a host joins {after_s:.2f} s after step {STEPS_BEFORE}"
    # No checkpoint but that of the stop: no step may be repeated.
    rarely = {"every": 10**6}
    with hosts_run(case.folder, case.dataset, plan=_TWO_HOSTS, checkpoint=rarely) as run:
        run.settle(after_s=after_s)
        begin_s = time.monotonic()
        text = join(run, _NEW)
        case.figures["joined_s"] = time.monotonic() - begin_s
        said = re.search(r"takes part from step (\d+) on", text)
        expect(said is not None, f"the host that joins does not learn since which step: {text}")
        run.finish(case)
        saved = list((run.folder(_NEW) / "checkpoints").glob("step-*[0-9]/*.safetensors"))
        expect(bool(saved), "the host that has joined has saved nothing on its disk")


def join(run: HostsRun, number: int) -> str:
    """Run `jaxpipe join` on a host, and return what it prints.

    Raises:
        RunError: it ends with another exit code than 0.
    """
    # All that a new host is given: a copy of the file, outside of the disks.
    copy = run.disk.with_name(JOIN_FILE)
    copy.write_bytes((run.folder() / JOIN_FILE).read_bytes())
    done = subprocess.run(
        [
            *run.emulation.enter(run.names[number]),
            *(sys.executable, "-P", "-m", "jaxpipe", "join", str(copy)),
        ],
        env={**os.environ, **run.emulation.settings},
        capture_output=True,
        text=True,
        timeout=ENDS_WITHIN_S,
        check=False,
    )
    if done.returncode:
        raise RunError(f"`jaxpipe join` ends with {done.returncode}: {done.stderr}{done.stdout}")
    return done.stdout


JOIN = Family(
    name="join",
    does="a host joins two others (namespaces, a disk each)",
    aim="the step since which it takes part is announced; no sample lost or doubled; losses equal "
    "to an undisturbed run's within 0.001 of them",
    num_trials=0,
    num_trials_full=20,
    trials=over_hosts(_trial, name="join"),
)
