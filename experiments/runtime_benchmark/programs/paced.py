"""One rank of a pipeline over shaped links whose computes take as long as they are told to.

Each compute of a small model is done, and then waited for until its time is over. So the order, the
messages, the sums and their overlap are real, any number of ranks fits on few cores, and what is
measured is the runtime. Emulated, every number of it.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from experiments.runtime_benchmark.programs.rank import run


def train(transport: Any, task: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return, on rank 0, the seconds of each step and the spans of all ranks."""
    from experiments.runtime_benchmark.jobs import job_of
    from experiments.runtime_benchmark.plans import emulated_cluster
    from experiments.runtime_benchmark.programs.pipeline import train_steps
    from jaxpipe.comm import ShapedTransport
    from jaxpipe.runtime.step.worker import start

    cluster = emulated_cluster(task)
    shaped = ShapedTransport(transport, cluster, devices=range(transport.num_ranks))
    worker = start(job_of(task, cluster), shaped)
    result = train_steps(paced(worker, task["seconds"]))
    shaped.close()
    return result


def paced(worker: Any, seconds: Mapping[str, float]) -> Any:
    """Return the worker with computes that take `seconds[op]`, by the name of their instruction."""
    from dataclasses import replace

    compiled = {
        stage: replace(
            each,
            forward=_lasting(each.forward, seconds["forward"]),
            backwards={op: _lasting(f, seconds[op.value]) for op, f in each.backwards.items()},
        )
        for stage, each in worker.compiled.items()
    }
    return replace(worker, interpreter=replace(worker.interpreter, compiled=compiled))


def _lasting(function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    import jax

    def call(*arguments: Any) -> Any:
        end_s = time.perf_counter() + seconds
        result = jax.block_until_ready(function(*arguments))
        time.sleep(max(0.0, end_s - time.perf_counter()))
        return result

    return call


if __name__ == "__main__":
    run(train)
