"""Train a model of `learn` as one SPMD program: experts over two devices, microbatches inside.

A request is the configuration of the pipeline; the answer is the loss of each step. The same
samples make up each microbatch, so that routing and balance losses are the same as well.
"""

import json
import sys
from typing import Any, Final

import jax
import numpy as np

from jaxpipe.autoshard.duplex.systems import System, strategy_of
from jaxpipe.autoshard.duplex_step import realized
from jaxpipe.autoshard.spmd import NamedStep, initial_state, placed, sharded_step
from jaxpipe.autoshard.strategy import jax_mesh
from jaxpipe.compare.routed_job import config_of
from jaxpipe.compare.whole_step import optimizer_of, whole_batch, whole_step
from jaxpipe.config import config_from, job_from, plan_from
from jaxpipe.propose.model_names import model_names
from jaxpipe.propose.model_sizes import duplex_graph
from jaxpipe.runtime.job import Job

DEVICES: Final = 2


def main() -> None:
    """Answer the request."""
    config = config_from(json.loads(sys.stdin.read()))
    job = job_from(config, plan_from(config))
    print(json.dumps(losses(job)))


def losses(job: Job) -> list[float]:
    """Return the loss of each step of a job, sharded over the devices of this process."""
    num_microbatches = job.plan.pipelines[0].num_microbatches
    run, arguments = whole_step(job, microbatches=num_microbatches)
    step = NamedStep(
        run=run,
        names=("state", "tokens", "targets"),
        result_names=("state", "loss"),
        microbatches=num_microbatches,
    )
    config = config_of(job)
    graph = duplex_graph(config, batch=job.train.batch, dtype=config.compute_dtype)
    strategy = realized(
        step,
        arguments,
        graph=graph,
        decisions=strategy_of(System.GSHARD, graph, num_devices=DEVICES),
        names=model_names(config),
        num_devices=DEVICES,
    )
    lies = placed(arguments, strategy.arguments, jax_mesh(strategy.mesh), names=step.names)
    key = jax.random.key(job.run.seed)
    state: Any = jax.device_put(
        initial_state(job.model, optimizer_of(job), key, dtype="float32"), lies[0]
    )
    sharded = sharded_step(step, arguments, strategy)
    found: list[float] = []
    for number in range(job.train.steps):
        order = dealt(job.train.batch, num_microbatches)
        rows = tuple(each[order] for each in whole_batch(job, step=number))
        batch = jax.device_put(rows, lies[1:])
        state, loss = sharded(state, *batch)
        found.append(float(loss))
    return found


def dealt(batch: int, num_microbatches: int) -> np.ndarray:
    """Return an order of rows in which microbatch i has the rows of the pipeline's.

    A device has consecutive rows, and its i-th part of them is its share of microbatch i.

    >>> dealt(8, 2).tolist()
    [0, 1, 4, 5, 2, 3, 6, 7]
    """
    rows = np.arange(batch).reshape(num_microbatches, DEVICES, -1)
    return rows.swapaxes(0, 1).ravel()


if __name__ == "__main__":
    main()
