"""One rank of the pipeline, as in `jaxpipe train` without evaluations and checkpoints."""

import time
from collections.abc import Callable

from jaxpipe.baselines.compare.measured import MeasuredStep, RankPart, peak_bytes
from jaxpipe.baselines.compare.slow_link_bytes import regions_of, sent_in_messages
from jaxpipe.comm import Transport
from jaxpipe.runtime.compile_count import counted_compiles
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.step.worker import start
from jaxpipe.runtime.train_snapshot import restore_state
from jaxpipe.topo import Cluster


def run_pipeline(
    job: Job, transport: Transport, *, cluster: Cluster, observe: Callable[[MeasuredStep], None]
) -> tuple[tuple[MeasuredStep, ...], RankPart]:
    """Train as one of the ranks; return its steps, which have the same losses on all ranks.

    Raises:
        ConfigError: this transport does not support the all-reduce of the plan.
        DeadlineError: a rank did not answer in time.
    """
    begin_s = time.perf_counter()
    with counted_compiles() as count:
        worker = start(job, transport)
    compile_s = time.perf_counter() - begin_s
    state, _ = restore_state(worker, None)
    counted = worker.interpreter.transport
    # After the start: messages before the first step do not count.
    before = counted.num_bytes_to()
    steps: list[MeasuredStep] = []
    for number in range(job.train.steps):
        begin_s = time.perf_counter()
        state, totals = worker.train_step(state, step=number)
        step_s = time.perf_counter() - begin_s
        # `totals.loss` is the sum over the targets of all replicas.
        done = MeasuredStep(step=number + 1, loss=totals.mean_loss, step_s=step_s)
        steps.append(done)
        observe(done)
    worker.close()
    sent, slow = sent_in_messages(
        counted.num_bytes_to() - before, regions_of(job.plan, cluster), rank=transport.rank
    )
    part = RankPart(
        compile_s=compile_s,
        peak_bytes=peak_bytes(),
        sent_bytes=sent / len(steps),
        slow_bytes=slow / len(steps),
        num_compiled=count.num_requests,
        num_cached=count.num_hits,
    )
    return tuple(steps), part
