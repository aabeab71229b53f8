"""The disk of a host is full for a while, or gone with all that was on it.

Ranks train on four hosts in namespaces, each with a disk of its own, under `jaxpipe run --hosts`.

::

    full     saves fail on one disk ─► the run trains on, and saves again when there is room
    gone     the run folder of a host is removed, and its processes are killed ─► the next attempt
             takes the files of that disk from their copies on others

Needs root.
"""

import shutil
import time
from pathlib import Path

from jaxpipe.chaos.harness.emulated_hosts import (
    NUM_HOSTS,
    STEPS_BEFORE,
    hosts_run,
    over_hosts,
)
from jaxpipe.chaos.harness.trial import Case, Family, expect
from jaxpipe.runtime.checkpoint.folders import committed_folders
from jaxpipe.topo.emulate import Emulation
from jaxpipe.topo.emulate.commands import run as run_program
from jaxpipe.topo.emulate.own_disks import disk_of

_SIZE_MIB = 16
_FULL_S = 2.0
_FILLING = "filling"


def _trial(case: Case) -> None:
    # A supervisor whose disk is gone has no lock and no metrics: its host may only be full.
    is_full, chance = case.seed % 2 == 0, case.chance()
    victim = chance.randrange(0 if is_full else 1, NUM_HOSTS)
    trial, what = (_full, "is full for a while") if is_full else (_gone, "is gone")
    case.name = f"the disk of host {victim} {what}"
    trial(case, victim)


def _full(case: Case, victim: int) -> None:
    def small_disk(emulation: Emulation, disk: Path) -> None:
        there = disk_of(emulation.owner, victim, disk)
        run_program("mount", "-t", "tmpfs", "-o", f"size={_SIZE_MIB}m", "none", str(there))

    with hosts_run(case.folder, case.dataset, prepare=small_disk) as run:
        there = run.disk_of(victim)
        try:
            run.settle()
            _fill(there / _FILLING)
            time.sleep(_FULL_S)
            (there / _FILLING).unlink()
            case.figures["steps_while_full"] = run.num_steps() - STEPS_BEFORE
            run.finish(case)
            saved = committed_folders(run.folder(victim))
            expect(bool(saved), "nothing was saved on the disk after it had room again")
            expect(not run.said("attempt 2"), "it was started again")
        finally:
            # Before the emulation ends, which removes the folder in which it is mounted.
            run_program("umount", "--lazy", str(there))


def _fill(path: Path) -> None:
    """Write until the disk has no room left."""
    with path.open("wb", buffering=0) as file:
        for size in (2**20, 2**12):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:  # no space is left for a piece of this size
                continue


def _gone(case: Case, victim: int) -> None:
    with hosts_run(case.folder, case.dataset) as run:
        run.settle()
        begin_s = time.monotonic()
        shutil.rmtree(run.folder(victim), ignore_errors=True)
        run.kill(victim)
        run.wait_for_step_after("attempt 2 continues")
        case.figures["next_step_s"] = time.monotonic() - begin_s
        run.finish(case)
        expect(not run.said("from the beginning"), "nothing was left of the first attempt")


DISK = Family(
    name="disk",
    does="the disk of a host of four is full for two seconds, or gone (namespaces, a disk each)",
    aim="full: the run trains on and saves again; gone: it resumes from copies on other disks; no "
    "sample lost or doubled; losses equal to an undisturbed run's within 0.001 of them",
    num_trials=0,
    num_trials_full=20,
    trials=over_hosts(_trial, name="disk"),
)
