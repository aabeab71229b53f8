"""Codecs at the boundaries of stages, on one device: what the next stage reads, and what returns.

::

    forward    h ──► decode(encode(h)) ──► next layer
    backward   of h ◄── decode(encode(c g)) / c ◄── g

A boundary between two stages of one rank has no message, and so no codec. Gradients cross as those
of a mean over all targets of a step, times the loss scale: `c` is that factor. There is no error
feedback between stages.

Ranks and one device differ by rounding before a codec. A value as near as that, 1e-12 of its size,
to where the codec rounds the other way would be a difference of one step of the codec.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxpipe.collective.codec.codec import Codec
from jaxpipe.collective.codec.codecs import codec_of
from jaxpipe.runtime.job import Job


class CodedBoundaries:
    """The codec before each layer of each replica, if there is one."""

    def __init__(self, job: Job) -> None:
        self._codecs: dict[tuple[int, int], Codec] = {}
        plan = job.plan
        for replica, pipeline in enumerate(plan.pipelines):
            kinds = pipeline.codecs or (job.comm.boundary,) * (pipeline.num_stages - 1)
            for stage, kind in enumerate(kinds, 1):
                before, after = (plan.rank(replica=replica, stage=n) for n in (stage - 1, stage))
                codec = codec_of(kind)
                if codec is not None and before != after:
                    self._codecs[replica, plan.layers(stage, replica=replica).start] = codec
        self._crossed = jax.custom_vjp(self._forward)
        self._crossed.defvjp(
            lambda x, boundary, factor: (self._forward(x, boundary, factor), (boundary, factor)),
            self._backward,
        )

    def crossed(self, x: Array, *, replica: Any, layer: Any, factor: Any) -> Array:
        """Return the input of a layer; its gradient crosses the same boundary, times a factor."""
        if not self._codecs:
            return x
        return self._crossed(x, jnp.stack([replica, layer]), factor)

    def _forward(self, x: Array, boundary: Array, factor: Any) -> Array:
        del factor
        return jax.pure_callback(self._coded, jax.ShapeDtypeStruct(x.shape, x.dtype), x, boundary)

    def _backward(self, given: tuple[Array, Any], of_x: Array) -> tuple[Array, None, None]:
        boundary, factor = given
        return self._forward(of_x * factor, boundary, factor) / factor, None, None

    def _coded(self, x: Any, boundary: Any) -> np.ndarray:
        values, (replica, layer) = np.asarray(x), np.asarray(boundary).tolist()
        codec = self._codecs.get((replica, layer))
        if codec is None:
            return values
        encoded = codec.encode(np.ascontiguousarray(values, np.float32).reshape(-1))
        decoded = codec.decode(encoded, size=values.size)
        return decoded.astype(values.dtype).reshape(values.shape)
