"""Processes of one run: started together, watched, and ended together, with deadlines."""

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from jaxpipe.runtime.process.memory_settings import MEMORY_SETTINGS
from jaxpipe.topo.emulate.addresses import DEVICE

_POLL_S = 0.02
_TAIL = 3000
_ROOT = Path(__file__).parents[2]
SETTINGS = {
    **MEMORY_SETTINGS,
    "JAX_PLATFORMS": "cpu",
    "GLOO_SOCKET_IFNAME": DEVICE,
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(_ROOT),
}
"""Of every process: the memory settings of `jaxpipe train`, the emulated network, one thread."""


def run_together(
    commands: Sequence[Sequence[str]],
    folder: Path,
    *,
    servers: Sequence[Sequence[str]] = (),
    settings: Mapping[str, str] = MappingProxyType({}),
    timeout_s: float,
    watch: Callable[[], None] = lambda: None,
) -> None:
    """Run commands until all have ended; `servers` are ended after them.

    `watch` is called again and again; a command that it has killed by a signal counts as ended.

    Raises:
        RuntimeError: a command failed; the message has the end of its output.
        TimeoutError: they took too long.
    """
    logs = [folder / f"log-{number}.txt" for number in range(len(commands) + len(servers))]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for command, log in zip((*commands, *servers), logs, strict=True):
            with log.open("wb") as file:
                processes.append(
                    subprocess.Popen(
                        command,
                        env=os.environ | SETTINGS | dict(settings),
                        stdin=subprocess.DEVNULL,
                        stdout=file,
                        stderr=subprocess.STDOUT,
                    )
                )
        _wait(processes[: len(commands)], logs, timeout_s=timeout_s, watch=watch)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _wait(
    processes: Sequence["subprocess.Popen[bytes]"],
    logs: Sequence[Path],
    *,
    timeout_s: float,
    watch: Callable[[], None],
) -> None:
    deadline_s = time.monotonic() + timeout_s
    while any(process.poll() is None for process in processes):
        watch()
        for process, log in zip(processes, logs, strict=False):
            # Below 0: a signal, that of `watch`.
            if (process.returncode or 0) > 0:
                raise RuntimeError(f"{process.args} exited with {process.returncode}:\n{_end(log)}")
        if time.monotonic() > deadline_s:
            ends = "\n".join(_end(log) for log in logs)
            raise TimeoutError(f"{processes[0].args} took more than {timeout_s:g} s:\n{ends}")
        time.sleep(_POLL_S)
    for process, log in zip(processes, logs, strict=False):
        if process.returncode > 0:
            raise RuntimeError(f"{process.args} exited with {process.returncode}:\n{_end(log)}")


def _end(log: Path) -> str:
    return log.read_text(errors="replace")[-_TAIL:]
