"""Runs the programs `ip` and `tc`; errors include their output."""

import subprocess
from collections.abc import Iterable

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
    where = () if namespace is None else ("-n", namespace)
    # One process for all lines: a process each would be slow for thousands of links.
    run("ip", *where, "-batch", "-", text="".join(f"{line}\n" for line in lines))


def in_namespace(namespace: str, script: str) -> str:
    """Run a shell script in a namespace; return its output.

    Raises:
        EmulationError: it failed.
    """
    return run("ip", "netns", "exec", namespace, "sh", "-eu", "-s", text=script)
