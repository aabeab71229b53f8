"""Train a model of `learn` as one SPMD program: experts over two devices, microbatches inside.

A request is the configuration of the pipeline; the answer is the loss of each step. The same
samples make up each microbatch, so that routing and balance losses are the same as well.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import jax
import numpy as np
import optax

from jaxpipe.baselines.autoshard.duplex.duplex_systems import strategy_of
from jaxpipe.baselines.autoshard.duplex_step import realized
from jaxpipe.baselines.autoshard.spmd import NamedStep, initial_state, placed, sharded_step
from jaxpipe.baselines.autoshard.strategy import jax_mesh
from jaxpipe.baselines.compare.routed_job import config_of
from jaxpipe.baselines.compare.whole_step import optimizer_of, whole_batch, whole_step
from jaxpipe.baselines.gpt.model_names import model_names
from jaxpipe.baselines.gpt.model_sizes import duplex_graph
from jaxpipe.baselines.systems import System
from jaxpipe.config import config_from, job_from
from jaxpipe.propose.resolve import plan_from
from jaxpipe.runtime.job import Job

DEVICES: Final = 2
_PATIENCE = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=300",
    "--xla_cpu_collective_call_terminate_timeout_seconds=900",
)
"""XLA ends a process whose devices wait 40 s for each other, as they may on a busy machine."""


def main() -> None:
    """Answer the request."""
    wait_for_late_devices()
    config = config_from(json.loads(sys.stdin.read()))
    job = job_from(config, plan_from(config))
    print(json.dumps(losses(job)))


def wait_for_late_devices() -> None:
    """Let emulated devices be late by minutes; call this before the first computation."""
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *_PATIENCE])


def losses(job: Job) -> list[float]:
    """Return the loss of each step of a job, sharded over the devices of this process."""
    optimizer, key = optimizer_of(job), jax.random.key(job.run.seed)
    program = SpmdProgram.of(job, optimizer)
    state = program.placed(initial_state(job.model, optimizer, key, dtype="float32"))
    found: list[float] = []
    for number in range(job.train.steps):
        state, loss = program.step(state, number)
        found.append(float(loss))
    return found


@dataclass(frozen=True, slots=True)
class SpmdProgram:
    """The step of a job over the devices of this process.

    Attributes:
        job: the job of a pipeline, whose samples and microbatches the step has.
        sharded: the step; it donates its state.
        placements: of the state, the inputs and the targets.
    """

    job: Job
    sharded: Callable[..., Any]
    placements: Any

    @classmethod
    def of(cls, job: Job, optimizer: optax.GradientTransformation) -> "SpmdProgram":
        """Shard the step of a job with an optimizer: experts over the devices."""
        num_microbatches = job.plan.pipelines[0].num_microbatches
        run, arguments = whole_step(job, microbatches=num_microbatches, optimizer=optimizer)
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
        mesh = jax_mesh(strategy.mesh)
        placements = placed(arguments, strategy.arguments, mesh, names=step.names)
        return cls(job, sharded_step(step, arguments, strategy), placements)

    def placed(self, state: Any) -> Any:
        """Return a state on the devices."""
        return jax.device_put(state, self.placements[0])

    def step(self, state: Any, number: int) -> tuple[Any, Any]:
        """Return the state after a step, and its loss."""
        num_microbatches = self.job.plan.pipelines[0].num_microbatches
        order = dealt(self.job.train.batch, num_microbatches)
        rows = tuple(each[order] for each in whole_batch(self.job, step=number))
        return self.sharded(state, *jax.device_put(rows, self.placements[1:]))


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
