"""One rank of a pipeline that trains: the seconds of each step, and what each compute took."""

import time
from collections.abc import Mapping
from typing import Any

from experiments.runtime_benchmark.programs.rank import run


def train(transport: Any, task: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return, on rank 0, what `train_steps` returns and the seconds until all were compiled."""
    from experiments.runtime_benchmark.jobs import job_of
    from jaxpipe.runtime.step.worker import start

    begin_s = time.perf_counter()
    worker = start(job_of(task), transport)
    compile_s = time.perf_counter() - begin_s
    result = train_steps(worker)
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
    trace = gather_trace(worker)
    if trace is None:
        return None
    spans = [asdict(span) for span in trace.spans]
    return {"step_s": step_s, "cpu_s": cpu_s, "losses": losses, "spans": spans}


if __name__ == "__main__":
    run(train)
