"""The SPMD side of `divergence`: a free run, steps from a pipeline's parameters, and controls.

A request is the configuration of a pipeline that has trained and kept a checkpoint of each step.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.hidup.learn_spmd import SpmdProgram, wait_for_late_devices
from jaxpipe.baselines.autoshard.spmd import initial_state, unstacked
from jaxpipe.baselines.compare.routed_job import config_of
from jaxpipe.baselines.compare.whole_step import optimizer_of, whole_batch, whole_step
from jaxpipe.config import config_from, job_from, restored_model
from jaxpipe.models.gpt import Gpt
from jaxpipe.models.moe import expert_mixture
from jaxpipe.models.moe.router import Routed
from jaxpipe.propose.resolve import plan_from
from jaxpipe.runtime.checkpoint import open_checkpoint
from jaxpipe.runtime.job import Job

Params = Any


def main() -> None:
    """Answer the request."""
    wait_for_late_devices()
    config = config_from(json.loads(sys.stdin.read()))
    job = job_from(config, plan_from(config))
    print(json.dumps(answer(job, list(_kept(job)))))


def answer(job: Job, kept: list[Params]) -> dict[str, list[float]]:
    """Return for each step what `divergence.rows` tabulates; `kept` is before each step."""
    free = SpmdProgram.of(job, optimizer_of(job))
    forced = SpmdProgram.of(job, optax.trace(decay=0.0))  # its state is the gradient
    state = free.placed(_fresh(job))
    choose = jax.jit(lambda params, inputs: _choices(job, params, inputs))
    found: dict[str, list[float]] = {
        name: [] for name in ("free_losses", "forced_losses", "forced_norms", "rerouted", "margins")
    }
    for number, params in enumerate(kept):
        inputs = whole_batch(job, step=number)[0]
        own = jax.device_get(state["params"])
        # One program at a time: those of two devices would wait for threads that others use.
        apart = [jax.device_get(choose(each, inputs)) for each in (params, own)]
        state, loss = jax.block_until_ready(free.step(state, number))
        zeros = jax.tree.map(jnp.zeros_like, params)
        at_kept = {"params": params, "optimizer": optax.TraceState(trace=zeros)}
        after, forced_loss = jax.block_until_ready(forced.step(forced.placed(at_kept), number))
        found["free_losses"].append(float(loss))
        found["forced_losses"].append(float(forced_loss))
        found["forced_norms"].append(float(optax.global_norm(after["optimizer"].trace)))
        found["rerouted"].append(int(np.sum(apart[0][0] != apart[1][0])))
        found["margins"].append(float(np.min(apart[0][1])))
    dense = replace(config_of(job), experts=0, balance_loss=0.0)
    found["twice"] = _twice(job)
    found["twice_dense"] = _twice(replace(job, model=Gpt(dense)))
    return found


def _kept(job: Job) -> Iterator[Params]:
    """Yield the pipeline's parameters before each step, a tree for each layer."""
    yield _fresh(job)["params"]
    for number in range(1, job.train.steps):
        path = Path(job.run.folder) / "checkpoints" / f"step-{number:08d}"
        model, params = restored_model(open_checkpoint(path))
        yield unstacked(params, model.num_layers)


def _fresh(job: Job) -> dict[str, Any]:
    key = jax.random.key(job.run.seed)
    return initial_state(job.model, optimizer_of(job), key, dtype="float32")


def _choices(job: Job, params: Params, inputs: Any) -> tuple[Any, Any]:
    """Return the expert of each token, and by how much its probability exceeds the next one's."""
    seen: list[Routed] = []

    def recorded(*arguments: Any) -> Routed:
        seen.append(original(*arguments))
        return seen[-1]

    original: Callable[..., Routed] = expert_mixture.route
    with patch.object(expert_mixture, "route", recorded):
        x = job.model.embed(params, inputs, None)
        for layer in range(job.model.num_layers):
            output = job.model.block(params["blocks"][str(layer)], x, None)
            x = output[0] if isinstance(output, tuple) else output
    best = [jax.lax.top_k(each.probabilities, 2)[0] for each in seen]
    return (
        jnp.stack([each.experts[..., 0] for each in seen]),
        jnp.stack([each[..., 0] - each[..., 1] for each in best]),
    )


def _twice(job: Job) -> list[float]:
    """Return by how much the losses of two runs differ whose parameters differ by one rounding."""
    run = jax.jit(whole_step(job)[0])
    losses = []
    for bits in (0, 1):
        state = _fresh(job)
        if bits:
            state["params"] = jax.tree.map(_next_float, state["params"])
        own = []
        for number in range(job.train.steps):
            state, loss = run(state, *whole_batch(job, step=number))
            own.append(float(loss))
        losses.append(own)
    return np.abs(np.subtract(*losses)).tolist()


def _next_float(leaf: Any) -> Any:
    return jnp.nextafter(leaf, jnp.inf)


if __name__ == "__main__":
    main()
