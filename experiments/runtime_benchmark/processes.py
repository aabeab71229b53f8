"""Starts what is measured: ranks under MPI or plain processes, given a task and asked for results.

Each process gets a folder with `task.json`, and rank 0 leaves `result.json` there.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from experiments.runtime_benchmark.claim import CannotMeasureError
from jaxpipe.runtime.process.mpirun import MEMORY_SETTINGS, find_mpirun, launch_command

_PROGRAMS = "experiments.runtime_benchmark.programs"
_ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 3600.0


def run_ranks(
    program: str,
    task: Mapping[str, Any],
    *,
    num_ranks: int,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """Run a program as `num_ranks` MPI ranks, each on a core of its own if there are so many.

    `settings` are added to the environment: those that XLA reads nowhere else.
    """
    command = [*launcher(num_ranks), sys.executable, "-m", f"{_PROGRAMS}.{program}"]
    return run_commands([command], task, settings)


def run_torch(python: Path, task: Mapping[str, Any], *, num_ranks: int) -> Any:
    """Run the peer program with another Python: a process to a rank, one to a core."""
    program = str(Path(__file__).parent / "programs" / "torch_pipeline.py")
    commands = [
        [str(python), program, "--rank", str(rank), "--num-ranks", str(num_ranks)]
        for rank in range(num_ranks)
    ]
    return run_commands(commands, task)


def check_cores(*, needed: int) -> None:
    """Refuse to measure where ranks cannot have cores of their own.

    Raises:
        CannotMeasureError: there are too few cores.
    """
    if len(os.sched_getaffinity(0)) < needed:
        raise CannotMeasureError(
            f"it needs {needed} cores, and there are {len(os.sched_getaffinity(0))}"
        )


@cache
def launcher(num_ranks: int) -> tuple[str, ...]:
    """Return the command that starts ranks on this host, without their program."""
    return launch_command(find_mpirun(), num_ranks=num_ranks)


def environment() -> dict[str, str]:
    """Return what all processes inherit, ours and the peer's.

    The same memory settings as the ranks of `jaxpipe train`; and MPICH has to be told that ranks
    may share cores.
    """
    return os.environ | MEMORY_SETTINGS | {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}


def run_commands(
    commands: Sequence[Sequence[str]],
    task: Mapping[str, Any],
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """Run commands, each followed by the folder of the task; return the result.

    Raises:
        RuntimeError: one of them failed; it says what it printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "task.json").write_text(json.dumps(task))
        processes = [
            subprocess.Popen(
                [*command, folder],
                cwd=_ROOT,
                env=environment() | dict(settings),
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            for command in commands
        ]
        for process in processes:
            output, _ = process.communicate(timeout=_TIMEOUT_S)
            if process.returncode:
                raise RuntimeError(f"{process.args} exited with {process.returncode}:\n{output}")
        return json.loads((Path(folder) / "result.json").read_text())
