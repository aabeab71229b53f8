"""The MLP of a layer with experts: a router and the kernels of all experts, as a module."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxpipe.models.moe.dispatch import dispatched, sorted_by_expert
from jaxpipe.models.moe.router import auxiliary_loss, route
from jaxpipe.models.moe.routing import Dispatch, Routing


class ExpertMixture(nnx.Module):
    """Experts that widen a token, apply GELU in its tanh form, and narrow it again; no biases.

    Args:
        routing: how tokens choose experts.
        dim: the width of a token.
        hidden: the width of an expert's middle.
        dtype: the format of the products.
        std: the standard deviation of fresh kernels.
        residual_std: that of the kernels that write to the residual stream.
        rngs: the source of fresh parameters.
    """

    def __init__(
        self,
        routing: Routing,
        *,
        dim: int,
        hidden: int,
        dtype: str,
        std: float,
        residual_std: float,
        rngs: nnx.Rngs,
    ) -> None:
        self.routing = routing
        self.dtype = dtype
        normal, count = nnx.initializers.normal, routing.experts
        self.router = nnx.Param(normal(std)(rngs.params(), (dim, count)))
        self.up = nnx.Param(normal(std)(rngs.params(), (count, dim, hidden)))
        self.down = nnx.Param(normal(residual_std)(rngs.params(), (count, hidden, dim)))

    def __call__(
        self, x: Float[Array, "batch seq dim"]
    ) -> tuple[Float[Array, "batch seq dim"], Float[Array, ""] | None]:
        """Return the output for each token, and the auxiliary loss, a mean; None if it has none."""
        routing, shape = self.routing, x.shape
        x = x.reshape(*routing.grouped(*shape[:2]), shape[2])  # no operation, but for groups
        with jax.named_scope("router"):
            routed = route(x, self.router[...], routing)
        if routing.dispatch is Dispatch.RAGGED:
            y = sorted_by_expert(x, routed, self._grouped)
        else:
            y = dispatched(x, routed, self._batched, capacity=routing.capacity(x.shape[1]))
        return y.reshape(shape), auxiliary_loss(routed, routing) if routing.has_loss else None

    def _batched(
        self, rows: Float[Array, "experts batch capacity dim"]
    ) -> Float[Array, "experts batch capacity dim"]:
        up, down = self._kernels()
        with jax.named_scope("up"):
            hidden = jnp.einsum("ebcd,edh->ebch", rows, up)
        with jax.named_scope("down"):
            return jnp.einsum("ebch,ehd->ebcd", _gelu(hidden), down)

    def _grouped(
        self, rows: Float[Array, "rows dim"], sizes: Int[Array, " experts"]
    ) -> Float[Array, "rows dim"]:
        up, down = self._kernels()
        return jax.lax.ragged_dot(_gelu(jax.lax.ragged_dot(rows, up, sizes)), down, sizes)

    def _kernels(self) -> tuple[Array, Array]:
        return self.up[...].astype(self.dtype), self.down[...].astype(self.dtype)


# Keeps its input for the backward, and nothing that it computes, as `jaxpipe.models.gpt.Mlp`.
_gelu = jax.checkpoint(partial(jax.nn.gelu, approximate=True))
