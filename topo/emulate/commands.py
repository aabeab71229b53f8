"""Runs the programs `ip` and `tc`; errors include their output."""

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence

_PLAIN = re.compile(r"[A-Za-z0-9 .:/%,@+_-]+")
_WRITE = """
while [ $# -gt 0 ]; do
    if [ -e "/proc/sys/net/$1" ]; then echo "$2" > "/proc/sys/net/$1"; fi
    shift 2
done
"""
"""A constant: names and values are arguments. /proc/sys/net is that of the reader's namespace."""

TIMEOUT_S = 120.0
"""Of one program [s]; a batch of 4,000 links takes a few seconds."""


class EmulationError(RuntimeError):
    """A step of creating, using or removing an emulated network has failed."""


def run(*command: str, text: str = "") -> str:
    """Run a program with `text` as its input; return its output. It is killed after two minutes.

    >>> run("cat", text="a line")
    'a line'

    Raises:
        EmulationError: it failed, did not end in time, or is not installed.
    """
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
    except OSError as error:
        raise EmulationError(f"`{command[0]}` cannot be run: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise EmulationError(f"`{' '.join(command)}` did not end in {TIMEOUT_S:g} s") from error
    if done.returncode:
        output = (done.stderr or done.stdout).strip()
        raise EmulationError(f"`{' '.join(command)}` failed with {done.returncode}: {output}")
    return done.stdout


def ip_batch(lines: Iterable[str], *, namespace: str | None = None) -> None:
    """Run many commands of `ip` in one process, in a namespace or on the machine.

    Raises:
        EmulationError: one of them failed; those before it have taken effect.
    """
    _batch("ip", lines, namespace=namespace)


def tc_batch(commands: Iterable[Sequence[str]], *, namespace: str) -> None:
    """Run many commands of `tc`, each a list of words, in one process in a namespace.

    Raises:
        EmulationError: one of them failed; those before it have taken effect.
    """
    _batch("tc", map(" ".join, commands), namespace=namespace)


def _batch(program: str, lines: Iterable[str], *, namespace: str | None) -> None:
    where = () if namespace is None else ("-n", namespace)
    # One process for all lines: a process each would be slow for thousands of links.
    text = "".join(f"{_plain(line)}\n" for line in lines)
    run(program, *where, "-batch", "-", text=text)


def _plain(line: str) -> str:
    """Return a line of a batch; a newline, quote or `#` in a word would make other commands."""
    assert _PLAIN.fullmatch(line), line
    return line


def write_kernel(namespace: str, settings: Mapping[str, str]) -> None:
    """Write files below /proc/sys/net in a namespace; those that the kernel lacks are left out.

    Raises:
        EmulationError: a file cannot be written.
    """
    words = [word for pair in settings.items() for word in pair]
    run("ip", "netns", "exec", namespace, "sh", "-euc", _WRITE, "write", *words)
