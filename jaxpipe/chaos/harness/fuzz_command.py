"""`jaxpipe` as it is, but that training ends where ranks would be started or begin to compute.

A file that is valid after all would train for long; whether it is valid has been decided by then.
Run as `python -m jaxpipe.chaos.harness.fuzz_command WORDS`, instead of `jaxpipe WORDS`.
"""

import runpy
import sys
from types import ModuleType

import jaxpipe.runtime.process.mpirun as launch_module


def stop_before_training() -> None:
    """Put nothing in the place of ranks."""

    def do_nothing(*_: object, **__: object) -> int:
        return 0

    launch_module.launch = do_nothing
    for name, functions in (
        ("jaxpipe.run.rank", ("Begin", "run_rank")),
        ("jaxpipe.run.paced", ("run_paced",)),
    ):
        module = ModuleType(name)
        vars(module).update(dict.fromkeys(functions, do_nothing))
        sys.modules[name] = module


if __name__ == "__main__":
    stop_before_training()
    runpy.run_module("jaxpipe", run_name="__main__", alter_sys=True)
