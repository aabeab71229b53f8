"""Run the tests that failed once more, one after the other: `python -m tests.again`.

A machine that others share starves some deadline in half an hour of tests. A test that fails again
has failed; so has a run with more than five failures, or with none, which ended otherwise.
"""

import json
import subprocess
import sys
from pathlib import Path

_MOST = 5
_FAILED = Path(__file__).resolve().parent.parent / ".pytest_cache/v/cache/lastfailed"


def main() -> int:
    """Return the exit code of the second try, 1 if there is none."""
    failed = sorted(json.loads(_FAILED.read_text())) if _FAILED.exists() else []
    if not 0 < len(failed) <= _MOST:
        return 1
    print("\nonce more, alone:", *failed, sep="\n  ", flush=True)  # noqa: T201
    return subprocess.run([sys.executable, "-m", "pytest", "-n0", *failed], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
