"""Runs a program of this package on forced devices, and reads its report."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from jaxpipe.runtime.process.quick_compiles import quick_flags


def devices(number: int) -> dict[str, str]:
    """Return the environment in which a process has this many devices of the CPU."""
    return {"XLA_FLAGS": quick_flags("", num_devices=number)}


def report_of(program: str, folder: Path, *, num_devices: int) -> dict[str, Any]:
    """Return what `tests.programs.PROGRAM` has found."""
    command = [sys.executable, "-m", f"tests.programs.{program}", str(folder)]
    subprocess.run(command, env=os.environ | devices(num_devices), check=True, timeout=400)
    return json.loads((folder / "report.json").read_text())
