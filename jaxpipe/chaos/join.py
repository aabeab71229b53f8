"""A host joins: the run stops after a step, and continues with it, bit by bit where it stopped.

Two ranks train on two of four hosts in namespaces, each with a disk of its own, under `jaxpipe run
--hosts`. At a random time `jaxpipe join` runs on a third host, which has nothing of the run but the
address and the key. Needs root.
"""

import logging
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from jaxpipe.chaos.harness.assertions import (
    ENDS_WITHIN_S,
    check_losses,
    check_samples,
    train_undisturbed,
)
from jaxpipe.chaos.harness.own_hosts import HostsRun, hosts_run
from jaxpipe.chaos.harness.trial import Family, Setup, Trial, expect, tried
from jaxpipe.chaos.orphan import can_emulate
from jaxpipe.errors import RunError
from jaxpipe.run.hosts.join_words import JOIN_FILE

logger = logging.getLogger(__name__)

_STEPS_BEFORE = 5
_NEW = 2
_TWO_HOSTS = {"stages": 2, "replicas": 1, "devices": ["here-0:0", "here-1:0"]}


def _trials(setup: Setup) -> Iterator[Trial]:
    if not can_emulate():
        logger.warning("join: not tried, because network namespaces need root and `ip`")
        return
    reference = train_undisturbed(setup.folder / "undisturbed", setup.dataset)
    for seed in range(setup.seed, setup.seed + setup.num_trials):
        after_s = random.Random(seed).uniform(0.0, 2.0)
        work = partial(_trial, setup.folder / f"seed-{seed}", setup.dataset, reference, after_s)
        yield tried(f"a host joins {after_s:.2f} s after step {_STEPS_BEFORE}", work)


def _trial(
    folder: Path, dataset: Path, reference: Path, after_s: float, figures: dict[str, float]
) -> None:
    with hosts_run(folder, dataset, plan=_TWO_HOSTS, checkpoint={"every": 10**6}) as run:
        run.wait_for_steps(_STEPS_BEFORE)
        time.sleep(after_s)
        begin_s = time.monotonic()
        text = join(run, _NEW)
        figures["joined_s"] = time.monotonic() - begin_s
        said = re.search(r"takes part from step (\d+) on", text)
        expect(said is not None, f"the joiner is not told since which step: {text}")
        code = run.started.wait(timeout_s=ENDS_WITHIN_S)
        expect(code == 0, f"the run ends with exit code {code}: {run.started.stdout[-600:]}")
        check_samples(run.started.config, dataset)
        figures["loss_differs"] = check_losses(run.folder(), reference)
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
    trials=_trials,
)
