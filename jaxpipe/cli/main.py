"""Reads the command line, calls the command, and turns errors into one line and an exit code.

::

    0   the command did its work
    1   the run failed, although its input was right
    2   the input is wrong: one line on standard error says what, where, and how to mend it
"""

import difflib
import errno
import logging
import os
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence

from jaxpipe.cli.command_table import COMMANDS, TOPICS, Command, CommandGroup
from jaxpipe.cli.parse import parse
from jaxpipe.cli.versions import version_line
from jaxpipe.errors import ConfigError, RunError, UserError, printable
from jaxpipe.runtime.process.garbage_collection import collect_rarely
from jaxpipe.runtime.process.launched_rank import launched_rank

_DESCRIPTION = "Train large models in JAX on the GPUs you can get: pipelines of MPI ranks, placed."
_SECONDS_TO_BE_ENDED = 10.0  # more than rank 0 needs to print, and the launcher to end the others
_LACKS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""A disk that has no room, or has failed."""
_LONGEST_LINE = 1500
"""Characters; names and values in files may be of any length."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return with_exit_code(lambda: _run(words))


def with_exit_code(work: Callable[[], int]) -> int:
    """Do some work and return its exit code; an error is one line, and its code."""
    collect_rarely()  # before the work imports jax
    if logging.lastResort is not None:  # the handler of programs that configure no other
        logging.lastResort.setFormatter(_PrintableFormatter())
    try:
        return work()
    except UserError as error:
        return _explain(error, code=2)
    except RunError as error:
        return _explain(error, code=1)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        # Else Python flushes standard output once more as it exits, and fails again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (OSError, MemoryError) as error:
        is_lack = isinstance(error, MemoryError) or error.errno in _LACKS
        # Another one without a path is a fault of ours; a rank's is another than all the others'.
        is_ours = not is_lack and isinstance(error, OSError) and error.filename is None
        if is_ours or launched_rank(os.environ) is not None:
            raise
        return _explain(_of_system(error), code=1 if is_lack else 2)
    except KeyboardInterrupt:
        sys.stderr.write("jaxpipe: interrupted\n")
        return 128 + signal.SIGINT


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(overview(width=shutil.get_terminal_size().columns))
        return 0 if words else 2
    if words[0] == "--version":
        print(version_line())
        return 0
    return _command_in(words, COMMANDS, "jaxpipe")


def _command_in(
    words: list[str], commands: Mapping[str, Command | CommandGroup], program: str
) -> int:
    """Run the command that the first of `words` names."""
    name, *rest = words
    entry = commands.get(name)
    if entry is None:
        typed = f"{program} {name}".removeprefix("jaxpipe ")
        near = difflib.get_close_matches(name, commands, n=1, cutoff=0.0)[0]  # always one
        raise ConfigError(
            f"no command `{typed}`; did you mean `{typed.removesuffix(name)}{near}`? "
            f"(`{program} --help` lists them all)"
        )
    program = f"{program} {name}"
    if isinstance(entry, Command):
        return parse(entry.load(), rest, name=program)()
    if not rest or rest[0] in ("-h", "--help"):
        print(_group_overview(name, entry, width=shutil.get_terminal_size().columns))
        return 0 if rest else 2
    return _command_in(rest, entry.commands, program)


def overview(*, width: int) -> str:
    """Return what `jaxpipe --help` prints: the commands by topic, with the first line of each."""
    lines = ["usage: jaxpipe [-h] [--version] COMMAND ...", "", _DESCRIPTION]
    for topic, commands in TOPICS.items():
        lines += ["", topic, *_listed(commands, width=width)]
    return "\n".join([*lines, "", "`jaxpipe COMMAND --help` describes the options of a command."])


def _group_overview(name: str, group: CommandGroup, *, width: int) -> str:
    commands = {f"{name} {second}": command for second, command in group.commands.items()}
    usage = f"usage: jaxpipe {name} [-h] COMMAND ..."
    return "\n".join([usage, "", group.first_line, "", *_listed(commands, width=width)])


def _listed(commands: Mapping[str, Command | CommandGroup], *, width: int) -> list[str]:
    """Return the names of commands with the first line of each, in two columns."""
    margin = max(map(len, {**COMMANDS, **commands})) + 4
    return [
        line
        for name, command in commands.items()
        for line in textwrap.wrap(
            command.first_line,
            width=max(width, 2 * margin),
            initial_indent=f"  {name}".ljust(margin),
            subsequent_indent=" " * margin,
        )
    ]


def _of_system(error: OSError | MemoryError) -> Exception:
    """Return an error of the system in words: the file, and what is wrong with it."""
    if isinstance(error, MemoryError):
        return RunError(f"cannot have so much memory: {error or 'none is left'}")
    if error.filename is None:
        return RunError(error.strerror or str(error))
    return RunError(f"cannot use {os.fsdecode(error.filename)}: {error.strerror}")


def _explain(error: Exception, *, code: int) -> int:
    """Print the error on one line.

    When all ranks find the same mistake, rank 0 says so for all of them; the others wait to be
    ended with it, since the first rank to go takes the job along.
    """
    here = launched_rank(os.environ)
    if here is not None and here.rank > 0:
        time.sleep(_SECONDS_TO_BE_ENDED)
        return code
    sys.stderr.write(f"jaxpipe: {_one_line(str(error))}\n")
    sys.stderr.flush()
    return code


class _PrintableFormatter(logging.Formatter):
    """Format records for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record, without escapes that a terminal would obey."""
        return printable(super().format(record))


def _one_line(words: str) -> str:
    r"""Return words that a terminal shows on one line, and people read to the end.

    >>> _one_line("`a` is\n  wrong: \x1b[2J")
    '`a` is wrong: \\x1b[2J'
    """
    # First, so that line breaks become blanks and not escapes.
    shown = printable(" ".join(words.split()))
    return shown if len(shown) <= _LONGEST_LINE else f"{shown[:_LONGEST_LINE]} ..."
