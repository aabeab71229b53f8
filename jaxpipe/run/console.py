"""The terminal: one console for all commands, progress of long operations, the next command."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.measure import Measurement
from rich.progress import Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

console = Console(highlight=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


def next_line(*words: object) -> str:
    """Return the line that names the next command, quoted for a shell.

    >>> next_line("generate", "my runs/a", "--prompt", "A list is")
    "next: jaxpipe generate 'my runs/a' --prompt 'A list is'"
    """
    return f"next: {shlex.join(['jaxpipe', *map(str, words)])}"


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
    unbounded = console.options.update(max_width=1000)
    width = Measurement.get(console, unbounded, table).maximum
    Console(highlight=False, width=max(width, console.width)).print(table)
