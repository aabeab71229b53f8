"""Commands of jaxpipe as a user types them, with a deadline."""

import subprocess
import sys
from pathlib import Path

_DEADLINE_S = 3600.0


def jaxpipe(*words: str | Path) -> str:
    """Run a command, show it and its output, and return what it printed.

    Raises:
        subprocess.SubprocessError: it failed, or took longer than an hour.
    """
    line = [str(word) for word in words]
    print("$ jaxpipe", *line, flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "jaxpipe", *line],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=_DEADLINE_S,
    )
    print(done.stdout, flush=True)
    return done.stdout


def settings(*changes: str) -> list[str]:
    """Return the options of `jaxpipe train` that change a configuration.

    >>> settings("train.steps=3", "lora.rank=8")
    ['--set', 'train.steps=3', '--set', 'lora.rank=8']
    """
    return [word for change in changes for word in ("--set", change)]
