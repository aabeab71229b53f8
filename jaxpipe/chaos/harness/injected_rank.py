"""One rank of a run under chaos: jaxpipe itself, which does what `orders.json` says besides.

`jaxpipe run CONFIG --rank-module jaxpipe.chaos.harness.injected_rank` starts it.
"""

import os
import runpy
import sys
import time
from functools import wraps
from pathlib import Path
from typing import Any

from jaxpipe.chaos.harness.fault_plan import note_process, read_fault_plan
from jaxpipe.runtime.process.mpirun import launched_rank


def prepare(config: Path, *, rank: int) -> None:
    """Make this process do as it was ordered, before it begins to be a rank."""
    orders = read_fault_plan(config)
    note_process(config, rank=rank)
    if orders.kill is not None:
        from jaxpipe.chaos.harness.injector import Injector

        Injector(orders.kill, config, rank=rank).arm()
    if orders.compile_s > 0 and rank == 0:
        _compile_for(orders.compile_s)


def _compile_for(seconds: float) -> None:
    """Make the compilation of a stage last longer."""
    import jaxpipe.runtime.step.worker as worker_module

    compile_stage = worker_module.compile_stage

    @wraps(compile_stage)
    def compile_slowly(*args: Any, **kwargs: Any) -> Any:
        time.sleep(seconds)
        return compile_stage(*args, **kwargs)

    worker_module.compile_stage = compile_slowly


if __name__ == "__main__":
    here = launched_rank(os.environ)
    if here is not None:
        from jaxpipe.runtime.process.affinity import die_with_parent, pin

        die_with_parent()
        pin(os.environ)  # before jax, which makes as many threads as there are cores
        prepare(Path(sys.argv[2]), rank=here.rank)
    runpy.run_module("jaxpipe", run_name="__main__", alter_sys=True)
