"""One rank of a run that writes down which samples it is fed: jaxpipe itself, otherwise.

`jaxpipe run CONFIG --rank-module jaxpipe.chaos.harness.recording_rank` starts it. The ranks of an
attempt have the same parent, whose beginning numbers the attempt.
"""

import os
import runpy
import sys
from pathlib import Path

from jaxpipe.chaos.harness.processes import psutil
from jaxpipe.runtime.process.mpirun import launched_rank

if __name__ == "__main__":
    if launched_rank(os.environ) is not None:
        from jaxpipe.runtime.process.affinity import die_with_parent, pin

        die_with_parent()
        pin(os.environ)  # before jax, which makes as many threads as there are cores
        from jaxpipe.chaos.harness.sample_log import record

        began_s = psutil.Process(os.getppid()).create_time()
        record(Path(sys.argv[2]), attempt=round(1000 * began_s))
    runpy.run_module("jaxpipe", run_name="__main__", alter_sys=True)
