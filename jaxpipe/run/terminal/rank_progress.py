"""How far the ranks are, from rank 0 to the launcher that shows it.

::

    rank 0 ──► run/watch/progress.json ──► launcher ──► progress line
                                              ▲
    all ranks ── what they print ─────────────┘  appears above the line

Ranks have pipes, and no terminal. Rank 0 of the user's own launcher shows how far it is itself.

The first step takes minutes on a slow machine, in which no line of a step is due; so its
computations are counted. A backward counts as two forwards, which it is in products; messages and
reductions as nothing::

    rank 0    forward 0   forward 1   backward 0   backward 1   reduce   update
    done      0           1           2            4            6        6 of 6
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec
import numpy as np

from jaxpipe.foreign_file import read_json
from jaxpipe.plan import Plan
from jaxpipe.run.terminal.progress import WORK, Progress, showing_progress
from jaxpipe.runtime.hooks import Hooks, MeasuredPairs, SavePhase
from jaxpipe.runtime.process.tee import Output
from jaxpipe.runtime.storage.atomic_write import write_at_once
from jaxpipe.schedule import Instruction, Op, Program


@contextmanager
def shown_ranks(folder: Path, what: str) -> Iterator[tuple[Output, Callable[[], None]]]:
    """Show how far ranks are while the body runs them.

    Yields where their output goes, and what the body calls about ten times a second.
    """
    clear_progress(folder)
    # No thread: the body forks.
    with showing_progress(what, ticks=False) as display:

        def show() -> None:
            if (progress := read_progress(folder)) is not None:
                display.update(progress)
            display.tick()

        try:
            yield Output(write=display.write), show
        finally:
            clear_progress(folder)


def progress_file(folder: Path) -> Path:
    """Return where a rank says how far it is, for its launcher.

    >>> progress_file(Path("run")).as_posix()
    'run/watch/progress.json'
    """
    return folder / "watch" / "progress.json"


def write_progress(folder: Path, progress: Progress) -> None:
    """Say how far a rank is; a disk that is full costs no more than that."""
    with suppress(OSError):
        write_at_once(progress_file(folder), msgspec.json.encode(progress))


def clear_progress(folder: Path) -> None:
    """Forget how far an earlier run was."""
    with suppress(OSError):
        progress_file(folder).unlink(missing_ok=True)


@contextmanager
def rank_progress(
    folder: Path, *, rank: int, has_launcher: bool
) -> Iterator[Callable[[Progress], None]]:
    """Yield what a rank calls to say how far it is: rank 0 alone is shown.

    A launcher of ours reads it from the folder of the run; without one, the rank shows it itself.
    """
    if rank > 0:
        yield _ignore
    elif has_launcher:
        yield partial(write_progress, folder)
    else:
        with showing_progress() as display:
            yield display.update


def _ignore(progress: Progress) -> None:
    """Do nothing: another rank is shown."""


def read_progress(folder: Path) -> Progress | None:
    """Return how far a rank has said that it is; None if it has not."""
    try:
        return read_json(progress_file(folder), Progress, most_bytes=_MOST_BYTES)
    except (OSError, ValueError):
        return None


FIRST_STEP: Final = "first step"
_MOST_BYTES: Final = 2**16

_WEIGHTS: Final = MappingProxyType(
    {Op.FORWARD: 1, Op.BACKWARD: 2, Op.BACKWARD_INPUT: 1, Op.BACKWARD_WEIGHT: 1}
)


class FirstStep:
    """Says before each computation of a rank's program how many are done.

    Args:
        program: the instructions of the rank in a training step.
        say: called with each change.

    >>> forward, backward = (
    ...     Instruction(op=op, stage=0, microbatch=0) for op in (Op.FORWARD, Op.BACKWARD)
    ... )
    >>> step = FirstStep((forward, backward), lambda progress: print(progress.text))
    >>> step.before(forward), step.before(backward)
    first step: 0 of 2 computations
    first step: 1 of 2 computations
    (None, None)
    """

    def __init__(self, program: Program, say: Callable[[Progress], None]) -> None:
        weights = [
            _WEIGHTS[instruction.op] for instruction in program if instruction.op in _WEIGHTS
        ]
        self._num_computations, self._total = len(weights), sum(weights)
        self._say = say
        self._num_done = self._done = 0
        self._running = 0

    def before(self, instruction: Instruction) -> None:
        """Say how much is done before an instruction; the one before it has ended."""
        if self._running:
            self._num_done, self._done = self._num_done + 1, self._done + self._running
        self._running = _WEIGHTS.get(instruction.op, 0)
        detail = f"{self._num_done} of {self._num_computations} computations"
        if self._done < self._total:
            self._say(
                Progress(
                    what=FIRST_STEP, detail=detail, done=self._done, total=self._total, unit=WORK
                )
            )
        elif instruction.op in (Op.REDUCE, Op.UPDATE, Op.GATHER):
            # This waits for slower ranks, whose progress is unknown: no count of work that is done.
            self._say(Progress(what=f"{FIRST_STEP}: {instruction.op}"))


def first_step(plan: Plan, *, rank: int, say: Callable[[Progress], None]) -> FirstStep:
    """Return the progress of a rank's first step."""
    programs = plan.train_schedule(replica=plan.replica(rank))
    return FirstStep(programs[plan.number(rank)], say)


class ReportedHooks(Hooks):
    """Hooks that say how far compilation and first step are, and call others at each point.

    `on_links` is called with each report of links.
    """

    def __init__(
        self,
        inner: Hooks,
        *,
        say: Callable[[Progress], None],
        on_links: Callable[[MeasuredPairs], None] | None = None,
    ) -> None:
        self._inner, self._say, self._on_links = inner, say, on_links
        self._num_steps = 0
        self._first_step: FirstStep | None = None

    def before_compile(self, *, done: int, total: int) -> None:
        """Say how many executables are compiled."""
        self._say(Progress(what="compiling the stages", done=done, total=total))
        self._inner.before_compile(done=done, total=total)

    def after_compile(self) -> None:
        """Say that this rank waits for those that still compile."""
        self._say(Progress(what="waiting for ranks that compile"))
        self._inner.after_compile()

    def after_read(self, plan: Plan, tokens: np.ndarray | None, *, rank: int, step: int) -> None:
        """Follow the first step; each later one is reported when it has ended."""
        self._num_steps += 1
        is_first = self._num_steps == 1
        self._first_step = first_step(plan, rank=rank, say=self._say) if is_first else None
        self._inner.after_read(plan, tokens, rank=rank, step=step)

    def before_instruction(self, instruction: Instruction) -> None:
        """Say how far the first step is."""
        if self._first_step is not None:
            self._first_step.before(instruction)
        self._inner.before_instruction(instruction)

    def before_evaluation(self) -> None:
        """Say that the first step is followed by a held-out loss."""
        if self._first_step is not None:
            self._first_step = None
            self._say(Progress(what="computing the held-out loss"))
        self._inner.before_evaluation()

    def before_last_save(self) -> None:
        """Say that training has ended: 15 GiB take minutes to save, and no step is reported."""
        self._say(Progress(what="saving the last checkpoint"))
        self._inner.before_last_save()

    def before_save_phase(self, phase: SavePhase) -> None:
        """Call the others."""
        self._inner.before_save_phase(phase)

    def after_links(self, measured: MeasuredPairs) -> None:
        """Judge the links, and call the others."""
        self._inner.after_links(measured)
        if self._on_links is not None:
            self._on_links(measured)
