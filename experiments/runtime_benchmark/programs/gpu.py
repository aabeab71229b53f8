"""One device: its matrix-product peak, and forward and backward of stages of some layers."""

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from experiments.runtime_benchmark.programs.rank import run


def measure(_: Any, task: Mapping[str, Any]) -> dict[str, Any]:
    """Return the device, its matrix peak in FLOP/s, and the seconds per part and attention."""
    import jax

    device = jax.devices()[0]
    found = {"platform": device.platform, "device": device.device_kind}
    if task["needs_gpu"] and device.platform != "gpu":
        return found
    peak = _matrix_peak(size=task["matrix"], dtype=task["model"]["compute_dtype"])
    parts = [
        {"attention": attention, "layers": layers, "microbatch": microbatch, **seconds}
        for attention in task["attentions"]
        for layers in task["layers"]
        for microbatch in task["microbatches"]
        if (seconds := _part(task, attention=attention, layers=layers, microbatch=microbatch))
    ]
    return {**found, "peak_flops_per_s": peak, "parts": parts}


def _matrix_peak(*, size: int, dtype: str) -> float:
    import jax
    import jax.numpy as jnp

    key_a, key_b = jax.random.split(jax.random.key(0))
    a, b = (jax.random.normal(key, (size, size)).astype(dtype) for key in (key_a, key_b))
    product = jax.jit(jnp.matmul)
    return 2 * size**3 / min(_times(lambda: product(a, b), count=30))


def _part(
    task: Mapping[str, Any], *, attention: str, layers: int, microbatch: int
) -> dict[str, Any] | None:
    """Return the seconds of a stage of `layers`: the whole model, or a stage in the middle.

    Return None where the device runs out of memory.
    """
    from dataclasses import replace

    import jax
    import jax.numpy as jnp

    from experiments.runtime_benchmark.runs import job_of
    from jaxpipe.models.gpt_config import Attention

    model = {**task["model"], "attention": Attention(attention)}
    whole = layers == model["num_layers"]
    plan = {"replicas": 1, "microbatch": microbatch, "schedule": "gpipe", "stages": 1}
    job = job_of({"model": model, "plan": plan, "batch": microbatch, "steps": 1})
    functions = job.functions(stage=0)
    if not whole:
        middle = replace(functions.stage, index=1, num_stages=3, layers=range(layers))
        functions = replace(functions, stage=middle)
    compute = jax.jit(lambda: functions.cast(functions.init()[0]))()
    tokens = jnp.zeros((microbatch, job.sequence), jnp.int32)
    position, activation = jnp.zeros(2, jnp.int32), functions.activation()
    x = tokens if whole else jnp.zeros(activation.shape, activation.dtype)
    forward = jax.jit(functions.forward)
    backward = jax.jit(functions.backward, donate_argnums=3)
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
            "whole": int(whole),
            "forward_s": median(_times(forwards, count=task["count"])),
            "backward_s": median(_times(back, count=task["count"])),
            "forward_call_s": _call_s(forwards, count=task["count"]),
            "backward_call_s": _call_s(back, count=task["count"]),
        }
    except jax.errors.JaxRuntimeError as error:
        print(f"{attention}, {layers} layers, microbatch {microbatch}: {error}")
        return None


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
