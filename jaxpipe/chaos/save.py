"""Faults while saving: a process that saves checkpoints is killed, or its disk is full.

Killed at a named point or at a random time, it must leave a checkpoint to resume from, bit by bit
as saved, and no older than the last finished save: at most the save in flight is lost. The next
save must cope with what was left behind. If the disk is full, the process continues, and saves
again once there is space.

A kill ends a process, not the machine: the kernel still writes what it has received. That a crash
of the machine loses nothing either depends on the order of flushes, which no kill can test.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec
import numpy as np

from jaxpipe.chaos.harness.mounts import can_mount, mounted
from jaxpipe.chaos.harness.save_loop import KEEP, NUM_RANKS, Loop, content, snapshot, step_of_save
from jaxpipe.chaos.harness.save_points import SavePoint
from jaxpipe.chaos.harness.trial import Case, Family, expect, one_by_one
from jaxpipe.comm import Transport, run_ranks
from jaxpipe.runtime.checkpoint import Checkpoint, newest_valid
from jaxpipe.runtime.checkpoint.async_saver import Saver

_ENDLESS = 1_000_000
_LARGE_BYTES = 1 << 23
_MOST_S = 1.0
_TIMEOUT_S = 60.0
_FULL_SAVES = range(3, 6)
_NUM_WITH_FULL = 8
_PER_SHARD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The output of a process before its end: its last begun save and its last finished one."""

    began: int
    saved: int
    failed: tuple[int, ...]

    @classmethod
    def of(cls, lines: list[str]) -> "Progress":
        r"""Parse the lines of output; a last one that was cut off is ignored.

        >>> Progress.of(["began 0\n", "saved 0\n", "began 1\n", "failed 1\n", "began 2"])
        Progress(began=1, saved=0, failed=(1,))
        """
        numbers: dict[str, list[int]] = {"began": [-1], "saved": [-1], "failed": []}
        for line in lines:
            if line.endswith("\n"):
                word, number = line.split()
                numbers[word].append(int(number))
        return cls(
            began=numbers["began"][-1],
            saved=numbers["saved"][-1],
            failed=tuple(numbers["failed"]),
        )


def _trial(case: Case) -> None:
    """Kill at each named point and at random times in turn, and fill the disk now and then."""
    points, seed = list(SavePoint), case.seed
    case.folder.mkdir()
    match seed % 5:
        case 0 | 3:
            # 0, 3, 5, 8, 10, ... become 0, 1, 2, 3, 4, ...: each point in turn.
            _at_point(case, points[(seed * 2 // 5) % len(points)])
        case 1 | 4:
            _at_random_time(case)
        case _:
            _on_full_disk(case, turn=seed // 5)


def _at_point(trial: Case, point: SavePoint) -> None:
    chance = trial.chance()
    loop = Loop(
        folder=str(trial.folder / "run"),
        num_saves=_ENDLESS,
        asynchronous=chance.random() < 1 / 2,
        point=point.name,
        fatal=chance.choice(_fatal_saves(point)),
    )
    trial.name = f"kill at {point.name.lower().replace('_', ' ')}, {_how(loop)}"
    with _saving(loop) as process:
        lines = _rest(process)
    progress = Progress.of(lines)
    _judge_killed(loop, progress, code=process.returncode)
    began, fatal = progress.began, loop.fatal
    expect(began == fatal, f"it was killed in save {began}, not in {fatal}")


def _fatal_saves(point: SavePoint) -> tuple[int, ...]:
    """Return saves that reach a point: only the second save of a step replaces an older one."""
    # From save 4, the first of step 3: with two checkpoints kept, one is removed.
    both = range(4, 8)
    replacing = tuple(number for number in both if number % 2)
    return replacing if point is SavePoint.OLDER_OF_SAME_STEP_NOT_ASIDE else tuple(both)


def _at_random_time(trial: Case) -> None:
    chance = trial.chance()
    shard_bytes = chance.choice((_PER_SHARD_BYTES, _LARGE_BYTES))
    loop = Loop(
        folder=str(trial.folder / "run"),
        num_saves=_ENDLESS,
        shard_bytes=shard_bytes,
        asynchronous=chance.random() < 1 / 2,
    )
    after_s = chance.uniform(0, _MOST_S)
    trial.name = f"kill after {after_s:.3f} s of saving {shard_bytes} bytes a rank, {_how(loop)}"
    with _saving(loop) as process:
        # After `saved 0`: without a first checkpoint there is nothing to resume from.
        begin = [_stdout(process).readline() for _ in range(2)]
        time.sleep(after_s)
        process.kill()
        progress = Progress.of([*begin, *_rest(process)])
    trial.figures["saves"] = progress.began + 1
    _judge_killed(loop, progress, code=process.returncode)


def _on_full_disk(trial: Case, *, turn: int) -> None:
    """Draw a full disk, a limit on files, or a tight disk; without the right to mount, the limit.

    On a full disk, an older checkpoint makes room for the first save; what fills the disk then
    takes that room as well, and the last checkpoint is not removed. With a limit on the size of
    files, no removed checkpoint makes room. A tight disk has room for the checkpoints that are
    kept, and not for one more.
    """
    disk, failing = trial.folder / "disk", tuple(_FULL_SAVES)
    match turn % 3 if can_mount(trial.folder) else 1:
        case 0:
            trial.name, filler = "full disk, by a disk of its own", disk / "filler"
            with _small_disk(disk, num_checkpoints=6):
                _save_on(disk, full=_FULL_SAVES, failing=failing[1:], filler=filler)
        case 2:
            trial.name = f"a disk with room for {KEEP} checkpoints"
            with _small_disk(disk, num_checkpoints=KEEP):
                _save_on(disk, full=range(0), failing=())
        case _:
            trial.name = "full disk, by a limit on files"
            _save_on(trial.folder, full=_FULL_SAVES, failing=failing)


def _small_disk(folder: Path, *, num_checkpoints: int) -> AbstractContextManager[Path]:
    """Mount a disk with room for some checkpoints, and half of one."""
    size = (2 * num_checkpoints + 1) * NUM_RANKS * _PER_SHARD_BYTES // 2
    return mounted(folder, f"size={size}")


def _save_on(
    folder: Path, *, full: range, failing: tuple[int, ...], filler: Path | None = None
) -> None:
    """Save on a disk that is `full` for some saves, and check what that leaves."""
    loop = Loop(
        folder=str(folder / "run"),
        num_saves=_NUM_WITH_FULL,
        shard_bytes=_PER_SHARD_BYTES,
        full_from=full.start,
        full_until=full.stop,
        filler=None if filler is None else str(filler),
    )
    with _saving(loop) as process:
        progress = Progress.of(_rest(process))
    code, failed, last = process.returncode, progress.failed, _NUM_WITH_FULL - 1
    expect(code == 0, f"the process did not continue, it ended with exit code {code}")
    what = f"saves {failing or 'none'} should fail, {failed or 'none'} failed"
    expect(failed == failing, what)
    _judge_found(loop, range(last, last + 1))


def _judge_killed(loop: Loop, progress: Progress, *, code: int) -> None:
    """Check the files of a killed process."""
    expect(code == -9, f"the process was not killed, it ended with exit code {code}")
    expect(progress.saved >= 0, "it was killed before its first save was done")
    # The save in flight may have been committed before it was reported.
    _judge_found(loop, range(progress.saved, progress.began + 1))
    _judge_next(loop)


def _judge_found(loop: Loop, allowed: range) -> None:
    """Check the newest checkpoint, which must be of an allowed save."""
    newest = newest_valid(Path(loop.folder))
    number = newest.metadata["save"]
    expect(
        number in allowed,
        f"save {number} was found, not one of {allowed.start} to {allowed.stop - 1}",
    )
    is_same = newest.step == step_of_save(number) and _is_as_saved(newest, loop, number)
    expect(is_same, f"save {number} differs from what was saved")


def _judge_next(loop: Loop) -> None:
    """Save once more, as a resumed run does, and check the files."""
    run = Path(loop.folder)
    number = newest_valid(run).metadata["save"] + 1

    def save(transport: Transport) -> str | None:
        saver = Saver(transport, folder=run, keep=KEEP, timeout_s=_TIMEOUT_S)
        saver.begin(snapshot(number, rank=transport.rank, shard_bytes=loop.shard_bytes))
        return saver.finish()

    failure = run_ranks(NUM_RANKS, save)[0]
    expect(failure is None, f"the next save failed: {failure}")
    # Suffixes are those of folders in between: `.partial` and `.replaced`.
    left = ", ".join(path.name for path in (run / "checkpoints").iterdir() if path.suffix)
    expect(not left, f"{left} is still there after the next save")
    _judge_found(loop, range(number, number + 1))


def _is_as_saved(found: Checkpoint, loop: Loop, number: int) -> bool:
    wanted: dict[str, np.ndarray] = {}
    for rank in range(NUM_RANKS):
        wanted |= content(number, rank=rank, shard_bytes=loop.shard_bytes)
    tensors = found.read(found.tensors)
    return tensors.keys() == wanted.keys() and all(
        tensors[name].tobytes() == wanted[name].tobytes() for name in wanted
    )


def _how(loop: Loop) -> str:
    return "asynchronous" if loop.asynchronous else "one after the other"


@contextmanager
def _saving(loop: Loop) -> Iterator[subprocess.Popen[str]]:
    command = [
        sys.executable,
        "-P",
        "-m",
        "jaxpipe.chaos.harness.save_loop",
        msgspec.json.encode(loop).decode(),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _rest(process: subprocess.Popen[str]) -> list[str]:
    """Wait for the end of a process, and return its remaining output."""
    lines = _stdout(process).readlines()
    process.wait(timeout=_TIMEOUT_S)
    return lines


def _stdout(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


SAVE = Family(
    name="save",
    does="kill -9 while checkpoints are saved, at named points and random times; fill the disk",
    aim="resumable, bit by bit; at most the save in flight is lost; a full disk stops nothing",
    num_trials=5,
    num_trials_full=60,
    trials=one_by_one(_trial, keeps_passed=False),
)
