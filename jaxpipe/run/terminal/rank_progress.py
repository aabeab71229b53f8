"""How far the ranks are, from rank 0 to the launcher that shows it.

::

    rank 0 ──► run/watch/progress.json ──► launcher ──► progress line
                                              ▲
    all ranks ── what they print ─────────────┘  appears above the line

Ranks have pipes, and no terminal. Rank 0 of the user's own launcher shows how far it is itself.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec

from jaxpipe.run.terminal.progress import Progress, showing_progress
from jaxpipe.runtime.process.tee import Output


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
    file = progress_file(folder)
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_suffix(".new")
        beside.write_bytes(msgspec.json.encode(progress))
        beside.replace(file)


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
        return msgspec.json.decode(progress_file(folder).read_bytes(), type=Progress)
    except (OSError, msgspec.DecodeError):
        return None
