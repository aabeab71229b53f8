"""Run a module in a process of its own, with the devices that this one lacks."""

import json
import subprocess
import sys
from typing import Any

from jaxpipe.autoshard.hlo.target import target_environment
from jaxpipe.errors import RunError


def run_python(module: str, request: Any, *, num_devices: int) -> Any:
    """Run `python -m module` with `request` as JSON on its input; return its last line as JSON.

    Raises:
        RunError: the process failed; the message ends with the last line of its error output.
    """
    process = subprocess.run(
        [sys.executable, "-m", module],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
        env=dict(target_environment(num_devices)),
    )
    if process.returncode:
        told = process.stderr.strip().splitlines() or ["nothing on its error output"]
        raise RunError(f"`python -m {module}` ended with {process.returncode}: {told[-1]}")
    return json.loads(process.stdout.strip().splitlines()[-1])
