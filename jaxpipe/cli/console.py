"""The terminal: one console for all commands, and progress on what takes long."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

console = Console(highlight=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def counter(unit: str) -> Iterator[Callable[[int], None]]:
    """Show a number that grows; it is given to the function that this yields."""
    columns = (SpinnerColumn(), TextColumn("{task.completed:,} " + unit), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task(unit, total=None)
        yield lambda count: progress.update(task, completed=count)
