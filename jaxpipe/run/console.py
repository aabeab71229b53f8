"""The terminal: one console for all commands, and progress of long operations."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.measure import Measurement
from rich.progress import Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

console = Console(highlight=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


def train_command(config: Path, settings: Sequence[str] = ()) -> str:
    """Return the command that trains with a configuration and changes to it, for a shell.

    >>> train_command(Path("my runs/a.toml"), ["plan.file=plan.toml"])
    "jaxpipe train 'my runs/a.toml' --set plan.file=plan.toml"
    """
    changes = [word for setting in settings for word in ("--set", setting)]
    return shlex.join(["jaxpipe", "train", str(config), *changes])


@contextmanager
def counter(unit: str) -> Iterator[Callable[[int], None]]:
    """Show a growing number; yields the function that updates it."""
    columns = (SpinnerColumn(), TextColumn("{task.completed:,} " + unit), TimeElapsedColumn())
    with _progress(*columns) as progress:
        task = progress.add_task(unit, total=None)
        yield lambda count: progress.update(task, completed=count)


@contextmanager
def under_way() -> Iterator[Callable[[str], None]]:
    """Show the current activity; yields the function that updates its text."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with _progress(*columns) as progress:
        task = progress.add_task("", total=None)
        yield lambda text: progress.update(task, description=text)


def _progress(*columns: ProgressColumn) -> Progress:
    """Return a progress display, which is off where standard error is no terminal."""
    return Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal)


def print_table(table: Table) -> None:
    """Print a table at its full width, also where the terminal is narrower."""
    # A table is measured within the width of the options: by default, that of the terminal.
    unbounded = console.options.update(max_width=1000)
    width = Measurement.get(console, unbounded, table).maximum
    Console(highlight=False, width=max(width, console.width)).print(table)
