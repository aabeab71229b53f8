"""A small stage, and one call of everything that it computes in a step."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxpipe.runtime.stage.calls import StageCalls
from jaxpipe.runtime.stage.functions import StageFunctions, Work
from jaxpipe.runtime.stage.optimizer_config import OptimizerConfig
from jaxpipe.runtime.stage.stage import Stage
from jaxpipe.runtime.stage.zero1 import OptimizerShard
from tests.oracles.one_device import MICROBATCH, SEED, SEQUENCE, VOCABULARY, tiny_gpt


def stage_functions(index: int, *, shards: tuple[OptimizerShard, ...] = ()) -> StageFunctions:
    """Return one of two stages of a tiny GPT."""
    return StageFunctions(
        stage=Stage(
            model=tiny_gpt(tied=True), index=index, num_stages=2, layers=range(index, index + 1)
        ),
        work=Work(microbatch=MICROBATCH, sequence=SEQUENCE, batch=2, num_steps=2, seed=SEED),
        optimizer=OptimizerConfig(),
        shards=shards,
    )


def step(calls: StageCalls) -> dict[str, Any]:
    """Call everything once, as a step with a whole and a split backward does."""
    spec = calls.spec
    draw = np.random.default_rng(0)
    tokens = draw.integers(0, VOCABULARY, (MICROBATCH, SEQUENCE)).astype(np.int32)
    hidden = jnp.asarray(draw.normal(size=spec.activation.shape), spec.activation.dtype)
    data = (tokens if spec.is_first else hidden, tokens if spec.is_last else None)
    params, moments = calls.init()
    compute = calls.cast(params)
    output, residuals = calls.forward(compute, *data, np.zeros(2, np.int32))
    cotangent = spec.loss_cotangent if spec.is_last else output
    _, whole = calls.backward(compute, residuals, cotangent, calls.zeros())
    of_input, carried = calls.backward_input(compute, residuals, cotangent)
    halves = calls.backward_weight(compute, carried, calls.zeros())
    buckets = calls.pack(whole)
    square_norm = np.float32(np.asarray(calls.square_norm(buckets)))
    found = {
        "output": output,
        "evaluated": calls.evaluate(compute, *data),
        "of_input": of_input,
        "halves": calls.pack(halves),
        "buckets": {bucket: np.array(vectors) for bucket, vectors in buckets.items()},
    }
    updated, _ = calls.update(params, moments, buckets, square_norm)
    if spec.sharded is not None:
        # the other half of the vector, from the other replica, is of ones
        (size,), (mine,) = spec.sharded.sizes, spec.sharded.vectors(updated)
        flat = np.ones(size, np.float32)
        flat[: mine.size] = mine
        updated = calls.join((flat,), updated)
    return {**found, "updated": updated}
