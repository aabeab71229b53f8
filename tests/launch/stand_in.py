"""Programs that stand in for launchers, first on the path of a script that is tried."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

CHECKPOINTS = Path("runs/My run_2/checkpoints")
"""Those of the golden cases."""
SAVES = f"""save() {{
  mkdir -p "{CHECKPOINTS}/step-$1"
  touch "{CHECKPOINTS}/step-$1/manifest.json"
}}"""
"""A function of a stand-in's shell: `save 00000007` keeps a checkpoint."""


def stand_in(folder: Path, name: str, script: str) -> None:
    """Put a program of this name first on the path of `start`."""
    program = folder / name
    program.write_text(f"#!/usr/bin/env bash\n{script}\n")
    program.chmod(0o755)


def save(folder: Path, step: str) -> None:
    """Keep a checkpoint of a step, of which only the name counts."""
    kept = folder / CHECKPOINTS / f"step-{step}"
    kept.mkdir(parents=True)
    (kept / "manifest.json").touch()


def start(script: Path, folder: Path) -> subprocess.Popen[str]:
    """Start a script in a folder; `jaxpipe` is there, too."""
    if not (folder / "jaxpipe").exists():
        stand_in(folder, "jaxpipe", "exit 1")
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "17"}
    return subprocess.Popen(
        ["bash", str(script)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(job: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Return the exit code, and what was said on standard output and on standard error.

    What hangs is ended after the script, as SLURM does.
    """
    try:
        code = job.wait(timeout=60.0)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        said, complained = job.communicate()
    return code, said, complained


def wait_for(path: Path) -> None:
    """Wait until a stand-in has written a file."""
    deadline_s = time.monotonic() + 60.0
    while not path.exists() and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert path.exists(), path
