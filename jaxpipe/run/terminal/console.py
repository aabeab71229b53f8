"""The terminal: one console for all commands, tables, and the next command."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table

from jaxpipe.errors import printable


class PrintableConsole(Console):
    """A console whose text cannot command the terminal; rich's own colours and cursor can."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of a renderable, their text made printable."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Raise the error that is handled: rich would end the process, with 1."""
        raise  # noqa: PLE0704  rich calls it inside of `except BrokenPipeError`


console = PrintableConsole(highlight=False, soft_wrap=True)
errors = PrintableConsole(stderr=True, highlight=False, soft_wrap=True)


def next_line(*words: object) -> str:
    """Return the line that names the next command, quoted for a shell.

    >>> next_line("generate", "my runs/a", "--prompt", "A list is")
    "next: jaxpipe generate 'my runs/a' --prompt 'A list is'"
    """
    return f"next: {shlex.join(['jaxpipe', *map(str, words)])}"


def set_words(settings: Sequence[str]) -> list[str]:
    """Return the words of a command line that change a configuration.

    >>> set_words(["train.steps=10"])
    ['--set', 'train.steps=10']
    """
    return [word for setting in settings for word in ("--set", setting)]


def train_command(config: Path, settings: Sequence[str] = ()) -> str:
    """Return the command that trains with a configuration and changes to it, for a shell.

    >>> train_command(Path("my runs/a.toml"), ["plan.file=plan.toml"])
    "jaxpipe train 'my runs/a.toml' --set plan.file=plan.toml"
    """
    return shlex.join(["jaxpipe", "train", str(config), *set_words(settings)])


def print_table(table: Table) -> None:
    """Print a table at its full width, also where the terminal is narrower."""
    # A table is measured within the width of the options: by default, that of the terminal.
    unbounded = console.options.update(max_width=1000)
    width = Measurement.get(console, unbounded, table).maximum
    PrintableConsole(highlight=False, width=max(width, console.width)).print(table)
