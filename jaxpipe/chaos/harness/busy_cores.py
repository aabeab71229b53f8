"""Processes that compute without end beside a run: a machine with more work than cores."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from jaxpipe.runtime.process.process_signals import die_with_parent


@contextmanager
def busy(num_processes: int) -> Iterator[None]:
    """Run processes that compute without end, during the block."""
    with ExitStack() as running:
        for _ in range(num_processes):
            process = subprocess.Popen(
                [sys.executable, "-I", "-c", "while True: pass"],
                preexec_fn=die_with_parent,  # noqa: PLW1509  only prctl
            )
            running.callback(process.wait)
            running.callback(process.kill)
        yield
