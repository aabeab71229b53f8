"""A training step of the whole model on one device, without a pipeline, in two forms.

`whole` is one jitted function that scans over all microbatches; `parts` is a jitted gradient per
microbatch and a jitted update. The faster form is the baseline.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from experiments.runtime_benchmark.programs.rank import run

Step = Callable[[Any, Any, Any], tuple[Any, Any, Any]]
"""Take parameters, moments and tokens; return new parameters, new moments and the loss."""


def train(_: Any, task: Mapping[str, Any]) -> dict[str, Any]:
    """Return the seconds of each step in the `form` of the task."""
    import jax
    import numpy as np

    from experiments.runtime_benchmark.runs import job_of

    job = job_of(task)
    functions = job.functions(stage=0)
    shape = (job.plan.num_microbatches, job.plan.microbatch, job.sequence + 1)
    tokens = np.random.default_rng(0).integers(0, job.model.vocabulary, shape).astype(np.int32)
    step = {"whole": _whole, "parts": _parts}[task["form"]](functions)
    params, moments = jax.jit(functions.init)()
    step_s, cpu_s, losses = [], [], []
    for _ in range(task["steps"]):  # the first one compiles
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        params, moments, loss = jax.block_until_ready(step(params, moments, tokens))
        step_s.append(time.perf_counter() - begin_s)
        cpu_s.append(time.process_time() - begin_cpu_s)
        losses.append(float(loss))
    return {"compile_s": step_s[0], "step_s": step_s, "cpu_s": cpu_s, "losses": losses}


def _whole(functions: Any) -> Step:
    import jax

    add, update = _add_gradient(functions), _update(functions)

    def step(params: Any, moments: Any, tokens: Any) -> tuple[Any, Any, Any]:
        compute = functions.cast(params)
        begin = functions.zeros()
        gradients, losses = jax.lax.scan(lambda g, t: add(compute, g, t), begin, tokens)
        return *update(params, moments, gradients), losses.sum()

    return jax.jit(step, donate_argnums=(0, 1))


def _parts(functions: Any) -> Step:
    import jax

    cast, zeros = jax.jit(functions.cast), jax.jit(functions.zeros)
    add = jax.jit(_add_gradient(functions), donate_argnums=1)
    update = jax.jit(_update(functions), donate_argnums=(0, 1))

    def step(params: Any, moments: Any, tokens: Any) -> tuple[Any, Any, Any]:
        compute, gradients, losses = cast(params), zeros(), []
        for microbatch in tokens:
            gradients, loss = add(compute, gradients, microbatch)
            losses.append(loss)
        del compute
        return *update(params, moments, gradients), sum(losses)

    return step


def _add_gradient(functions: Any) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
    import jax

    def loss(compute: Any, tokens: Any) -> Any:
        total = functions.stage.apply(compute, tokens[:, :-1], tokens[:, 1:], None)
        return functions.loss_cotangent() * total

    def add(compute: Any, gradients: Any, tokens: Any) -> tuple[Any, Any]:
        value, new = jax.value_and_grad(loss)(compute, tokens)
        return jax.tree.map(lambda a, g: a + g, gradients, new), value

    return add


def _update(functions: Any) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
    def update(params: Any, moments: Any, gradients: Any) -> tuple[Any, Any]:
        buckets = functions.pack(gradients)
        return functions.update(params, moments, buckets, functions.square_norm(buckets))

    return update


if __name__ == "__main__":
    run(train)
