"""Run `jaxpipe emulate` and `jaxpipe train` as a user does."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_JAXPIPE = (sys.executable, "-m", "jaxpipe")


def emulate(cluster: str, scale: float, command: Sequence[str], *, engine: str = "relay") -> str:
    """Run a command over an emulated cluster; return its output, stderr included.

    Raises:
        RuntimeError: it failed; the message has its output.
    """
    options = ("--scale", str(scale), "--engine", engine)
    return run((*_JAXPIPE, "emulate", cluster, *options, "--", *command))


def train(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the command that trains."""
    return (*_JAXPIPE, "train", *arguments)


def run(command: Sequence[str]) -> str:
    """Run a command; return its output, stderr included.

    Raises:
        RuntimeError: it failed; the message has its output.
    """
    done = subprocess.run(
        command,
        # Ranks do not look for modules in the working directory; hooks may be those of experiments.
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(_ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout}")
    return done.stdout
