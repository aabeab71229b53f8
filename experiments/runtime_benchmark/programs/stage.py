"""One stage on one core: the seconds of its calls, as a rank compiles them."""

import sys
import time
from collections.abc import Mapping
from statistics import median
from typing import Any

from experiments.runtime_benchmark.programs.gpu import matrix_peak
from experiments.runtime_benchmark.programs.rank import run

CALLS = ("forward_s", "backward_s", "input_s", "weight_s")


def measure(_: Any, task: Mapping[str, Any]) -> dict[str, Any]:
    """Return the median seconds of each call, and the peak of matrix products.

    Without `copied`, products over rows read their factors as they are.
    """
    import jax
    import numpy as np

    from experiments.runtime_benchmark.runs import job_of
    from jaxpipe.runtime.stage import row_products
    from jaxpipe.runtime.stage.compile import compile_stage
    from jaxpipe.schedule import Op

    if not task["copied"]:
        row_products.LEAST_COPIED = sys.maxsize
    job = job_of(task)
    calls = compile_stage(job.functions(stage=0), ops=tuple(Op))
    shape = (job.plan.microbatch, job.sequence)
    tokens = np.random.default_rng(0).integers(0, job.model.vocabulary, shape).astype(np.int32)
    compute, gradients = calls.cast(calls.init()[0]), calls.zeros()
    loss, position = calls.spec.loss_cotangent, np.zeros(2, np.int32)
    seconds: dict[str, list[float]] = {name: [] for name in CALLS}

    def timed(name: str, call: Any, *arguments: Any) -> Any:
        begin_s = time.perf_counter()
        result = jax.block_until_ready(call(*arguments))
        seconds[name].append(time.perf_counter() - begin_s)
        return result

    for _ in range(task["count"] + 1):  # the first one warms up
        _, residuals = timed("forward_s", calls.forward, compute, tokens, tokens, position)
        _, gradients = timed("backward_s", calls.backward, compute, residuals, loss, gradients)
        _, carried = timed("input_s", calls.backward_input, compute, residuals, loss)
        gradients = timed("weight_s", calls.backward_weight, compute, carried, gradients)
    medians = {name: median(values[1:]) for name, values in seconds.items()}
    return {**medians, "peak_flops_per_s": matrix_peak(size=task["matrix"], dtype="float32")}


if __name__ == "__main__":
    run(measure)
