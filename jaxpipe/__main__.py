"""The entry of `jaxpipe` and `python -m jaxpipe`."""

import os
import sys
from pathlib import Path

from jaxpipe.errors import printable
from jaxpipe.shadowing import shadowing_module


def main() -> int:
    """Run the command of this process, and return the exit code."""
    shadow = None if sys.flags.safe_path else shadowing_module(Path(sys.path[0]))
    if shadow is not None:
        sys.stderr.write(
            f"jaxpipe: Python would import {printable(str(shadow))} in place of a package that "
            "jaxpipe needs: start it as `jaxpipe` or `python -P -m jaxpipe`, or rename that\n"
        )
        return 2
    from jaxpipe.cli.main import main as run  # after the check: this imports such packages

    if sys.argv[1:2] == ["train"]:  # the only rank of a run, and one that `mpirun` has started
        from jaxpipe.runtime.process.memory_settings import keep_freed_memory

        keep_freed_memory(os.environ)
    return run()


if __name__ == "__main__":
    sys.exit(main())
