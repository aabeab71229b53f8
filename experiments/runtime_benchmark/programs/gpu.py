"""One device: its matrix-product peak, stages of some layers, and the forms of attention.

The task's `measures` says which: `parts` are the forward and backward of stages of `layers` with
one form of attention, for each of `microbatches`; `errors` are those of one form of attention.
"""

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import Any

from experiments.runtime_benchmark.programs.rank import run


def measure(_: Any, task: Mapping[str, Any]) -> dict[str, Any]:
    """Return the device, and what the task measures of it."""
    import jax

    device = jax.devices()[0]
    description = {"platform": device.platform, "device": device.device_kind}
    if task["needs_gpu"] and device.platform != "gpu":
        return description
    if task["measures"] == "errors":
        return description | {"rows": _errors(task)}
    peak = matrix_peak(size=task["matrix"], dtype=task["model"]["compute_dtype"])
    parts = (_part(task, microbatch=microbatch) for microbatch in task["microbatches"])
    rows = [part for part in parts if part is not None]
    return description | {"peak_flops_per_s": peak, "rows": rows}


def matrix_peak(*, size: int, dtype: str) -> float:
    """Return the FLOP/s of the fastest of 30 products of square matrices."""
    import jax
    import jax.numpy as jnp

    key_a, key_b = jax.random.split(jax.random.key(0))
    a, b = (jax.random.normal(key, (size, size)).astype(dtype) for key in (key_a, key_b))
    product = jax.jit(jnp.matmul)
    return 2 * size**3 / min(_times(lambda: product(a, b), count=30))


def _part(task: Mapping[str, Any], *, microbatch: int) -> dict[str, Any] | None:
    """Return the seconds of a stage of `layers`: the whole model, or a stage in the middle.

    Return None where the device runs out of memory.
    """
    from dataclasses import replace

    import jax
    import jax.numpy as jnp
    import numpy as np

    from experiments.runtime_benchmark.runs import job_of
    from jaxpipe.models.gpt_config import Attention
    from jaxpipe.runtime.blas.product_lowering import use_products
    from jaxpipe.runtime.stage.compile import fast_backwards

    layers = task["layers"]
    model = {**task["model"], "attention": Attention(task["attention"])}
    whole = layers == model["num_layers"]
    plan = {"replicas": 1, "microbatch": microbatch, "schedule": "gpipe", "stages": 1}
    job = job_of({"model": model, "plan": plan, "batch": microbatch, "steps": 1})
    functions = job.functions(stage=0)
    if not whole:
        middle = replace(functions.stage, index=1, num_stages=3, layers=range(layers))
        functions = replace(functions, stage=middle)
    compute = jax.jit(lambda: functions.cast(functions.init()[0]))()
    # Products of zeros take less power and, on some GPUs, less time.
    random = np.random.default_rng(0)
    tokens = jnp.asarray(
        random.integers(0, model["vocabulary"], (microbatch, job.sequence)), jnp.int32
    )
    position, activation = jnp.zeros(2, jnp.int32), functions.activation()
    x = tokens if whole else jnp.asarray(random.normal(size=activation.shape), activation.dtype)
    forward = jax.jit(functions.forward)
    fast = fast_backwards(functions, use_products(os.environ))  # as a rank compiles it
    backward = jax.jit(fast(functions.backward), donate_argnums=3)
    targets = tokens if whole else None
    try:
        output, residuals = jax.block_until_ready(forward(compute, x, targets, position))
        cotangent = functions.loss_cotangent() if whole else output
        gradients = [jax.jit(functions.zeros)()]

        def back() -> Any:
            of_input, gradients[0] = backward(compute, residuals, cotangent, gradients[0])
            return of_input, gradients[0]

        forwards = lambda: forward(compute, x, targets, position)  # noqa: E731
        return {
            "microbatch": microbatch,
            "forward_s": median(_times(forwards, count=task["count"])),
            "backward_s": median(_times(back, count=task["count"])),
            "forward_call_s": _call_s(forwards, count=task["count"]),
            "backward_call_s": _call_s(back, count=task["count"]),
        }
    except jax.errors.JaxRuntimeError as error:
        print(f"{task['attention']}, {layers} layers, microbatch {microbatch}: {error}")
        return None


def _errors(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the largest relative error of attention in half precision, by kind of scores.

    The reference is that of the blocked products in float32 on the CPU.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    from jaxpipe.models.gpt_config import Attention
    from jaxpipe.models.kernels.attention import grouped_attention
    from jaxpipe.models.kernels.scores import Scores

    kinds = {
        "causal": (Scores(), 8),
        "grouped heads": (Scores(), 2),
        "window": (Scores(window=100), 8),
        "not causal": (Scores(causal=False), 8),
        "scaled": (Scores(scale=0.3), 8),
    }
    random, cpu = np.random.default_rng(0), jax.devices("cpu")[0]

    @partial(jax.jit, static_argnums=(0, 1))
    def result(form: Attention, scores: Scores, cotangent: Any, *operands: Any) -> Any:
        mixed = lambda *qkv: grouped_attention(*qkv, form=form, scores=scores)  # noqa: E731
        output, of_operands = jax.vjp(mixed, *operands)
        return output, *of_operands(cotangent.astype(output.dtype))

    rows = []
    for kind, (scores, kv_heads) in kinds.items():
        shapes = [(512, 512), *((1, 512, heads, 64) for heads in (8, kv_heads, kv_heads))]
        arrays = [random.normal(size=shape).astype(jnp.bfloat16) for shape in shapes]
        wide = [jax.device_put(array.astype(np.float32), cpu) for array in arrays]
        exact = result(Attention.PRODUCT, scores, *wide)
        measured = result(Attention(task["attention"]), scores, *arrays)
        errors = [_relative(ours, true) for ours, true in zip(measured, exact, strict=True)]
        rows.append({"scores": kind, "error": max(errors)})
    return rows


def _relative(array: Any, reference: Any) -> float:
    import numpy as np

    wide, exact = np.asarray(array, np.float32), np.asarray(reference)
    return float(np.linalg.norm(wide - exact) / np.linalg.norm(exact))


def _times(call: Callable[[], Any], *, count: int) -> list[float]:
    """Return the seconds of calls from start to result, after two that warm up."""
    import jax

    seconds = []
    for _ in range(count + 2):
        begin_s = time.perf_counter()
        jax.block_until_ready(call())
        seconds.append(time.perf_counter() - begin_s)
    return seconds[2:]


def _call_s(call: Callable[[], Any], *, count: int) -> float:
    """Return the median seconds until a call returns, before its result is ready."""
    import jax

    seconds = []
    for _ in range(count):
        begin_s = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - begin_s)
        jax.block_until_ready(result)
    return median(seconds)


if __name__ == "__main__":
    run(measure)
