"""Ask a script that runs under another Python, which has torch and transformers: JSON both ways."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def answer_of(
    python: Path,
    script: Path,
    request: Mapping[str, Any],
    *arguments: str,
    timeout_s: float,
    path: Sequence[Path] = (),
) -> dict[str, Any]:
    """Return what the script prints in its last line, given the request as its standard input.

    The folders of `path` come first on its path, with other versions of packages. It downloads
    nothing.

    Raises:
        subprocess.SubprocessError: it failed, or took too long.
    """
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "PYTHONPATH": os.pathsep.join(str(folder.absolute()) for folder in path),
    }
    done = subprocess.run(
        [str(python), "-P", str(script), *arguments],
        input=json.dumps(request),
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        check=True,
        timeout=timeout_s,
    )
    return json.loads(done.stdout.splitlines()[-1])
