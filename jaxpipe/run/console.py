"""The terminal: one console for all commands, and progress on what takes long."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.measure import Measurement
from rich.progress import Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

console = Console(highlight=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def counter(unit: str) -> Iterator[Callable[[int], None]]:
    """Show a number that grows; it is given to the function that this yields."""
    columns = (SpinnerColumn(), TextColumn("{task.completed:,} " + unit), TimeElapsedColumn())
    with _progress(*columns) as progress:
        task = progress.add_task(unit, total=None)
        yield lambda count: progress.update(task, completed=count)


@contextmanager
def under_way() -> Iterator[Callable[[str], None]]:
    """Show what is under way; its words are given to the function that this yields."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with _progress(*columns) as progress:
        task = progress.add_task("", total=None)
        yield lambda words: progress.update(task, description=words)


def _progress(*columns: ProgressColumn) -> Progress:
    """Return what shows progress on a terminal, and nothing in a file, which would keep it all."""
    return Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal)


def print_table(table: Table) -> None:
    """Print a table as wide as it is, where the terminal is narrower or there is none."""
    unbounded = console.options.update(max_width=1000)
    width = Measurement.get(console, unbounded, table).maximum
    Console(highlight=False, width=max(width, console.width)).print(table)
