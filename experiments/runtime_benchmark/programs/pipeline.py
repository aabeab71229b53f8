"""One rank of a pipeline that trains: the seconds of each step and the spans of its computes.

With `paced_s` in its task, links are shaped and computes are paced: each compute of a small model
runs and then waits until its time is over. Order, messages, all-reduces and their overlap stay
real, and any number of ranks fits on a few cores. Every number of a paced run is emulated. With
`in_flight`, as many computes are dispatched ahead, in place of the number of the platform.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from experiments.runtime_benchmark.programs.rank import run


def train(transport: Any, task: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return, on rank 0, the result of `train_steps` and the seconds of start and compilation."""
    from experiments.runtime_benchmark.runs import emulated_cluster, job_of
    from jaxpipe.comm import ShapedTransport
    from jaxpipe.runtime.step.worker import start

    cluster = emulated_cluster(task) if "paced_s" in task else None
    links = transport
    if cluster is not None:
        links = ShapedTransport(transport, cluster, devices=range(transport.num_ranks))
    begin_s = time.perf_counter()
    worker = start(job_of(task, cluster), links)
    compile_s = time.perf_counter() - begin_s
    if cluster is not None:
        worker = paced(worker, task["paced_s"])
    if "in_flight" in task:
        worker = replace(
            worker, interpreter=replace(worker.interpreter, in_flight=task["in_flight"])
        )
    result = train_steps(worker)
    if links is not transport:
        links.close()
    return None if result is None else {"compile_s": compile_s, **result}


def train_steps(worker: Any) -> dict[str, Any] | None:
    """Return, on rank 0, seconds and loss of each step of the job, and the spans of all ranks."""
    from dataclasses import asdict

    from jaxpipe.runtime.metrics.trace_file import gather_trace
    from jaxpipe.runtime.train_snapshot import restore_state

    state, _ = restore_state(worker, None)
    step_s, cpu_s, losses = [], [], []
    for step in range(worker.job.train.steps):
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        state, totals = worker.train_step(state, step=step)
        step_s.append(time.perf_counter() - begin_s)
        cpu_s.append(time.process_time() - begin_cpu_s)
        losses.append(totals.loss / worker.job.tokens_per_step)
    worker.close()
    trace = gather_trace(worker, {})
    if trace is None:
        return None
    spans = [asdict(span) for span in trace.spans]
    return {
        "step_s": step_s,
        "cpu_s": cpu_s,
        "losses": losses,
        "spans": spans,
        "peak_bytes": _peak_bytes(),
    }


def _peak_bytes() -> int | None:
    """Return the most memory of its device that this rank has held; None where it does not say."""
    import jax

    return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


def paced(worker: Any, seconds: Mapping[str, float]) -> Any:
    """Return the worker with computes that last `seconds[op]`, by the name of the instruction."""
    calls = {
        stage: replace(
            each,
            executables={
                name: _lasting(call, seconds[op])
                if (op := name.replace("_", "-")) in seconds
                else call
                for name, call in each.executables.items()
            },
        )
        for stage, each in worker.calls.items()
    }
    return replace(worker, interpreter=replace(worker.interpreter, calls=calls))


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
