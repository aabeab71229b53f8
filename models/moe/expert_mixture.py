"""The MLP of a layer with experts: a router and the kernels of all experts, as a module."""

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxpipe.models.kernels.activations import gelu, rounded_once
from jaxpipe.models.moe.dispatch import dispatched, sorted_by_expert
from jaxpipe.models.moe.router import auxiliary_loss, route
from jaxpipe.models.moe.routing import Dispatch, Routing

Gated: TypeAlias = Callable[[Array, Array], Array]
"""Takes the products with the kernels `gate` and `up`, and returns the middle."""


class ExpertMixture(nnx.Module):
    """Experts that widen a token, apply GELU in its tanh form, and narrow it again; no biases.

    Args:
        routing: how tokens choose experts.
        dim: the width of a token.
        hidden: the width of an expert's middle.
        dtype: the format of the products.
        stds: the standard deviation of fresh kernels, and of those that write to the residual
            stream.
        rngs: the source of fresh parameters.
        gated: the middle of experts with a gate, in place of GELU.
    """

    def __init__(
        self,
        routing: Routing,
        *,
        dim: int,
        hidden: int,
        dtype: str,
        stds: tuple[float, float],
        rngs: nnx.Rngs,
        gated: Gated | None = None,
    ) -> None:
        std, residual_std = stds
        self.routing = routing
        self.dtype = dtype
        self.gated = gated
        normal, count = nnx.initializers.normal, routing.experts
        self.router = nnx.Param(normal(std)(rngs.params(), (dim, count)))
        if gated is not None:
            self.gate = nnx.Param(normal(std)(rngs.params(), (count, dim, hidden)))
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
        with jax.named_scope("up"):
            middle = self._middle(lambda kernel: jnp.einsum("ebcd,edh->ebch", rows, kernel))
        with jax.named_scope("down"):
            return jnp.einsum("ebch,ehd->ebcd", middle, self._kernel(self.down))

    def _grouped(
        self, rows: Float[Array, "rows dim"], sizes: Int[Array, " experts"]
    ) -> Float[Array, "rows dim"]:
        middle = self._middle(lambda kernel: jax.lax.ragged_dot(rows, kernel, sizes))
        return jax.lax.ragged_dot(middle, self._kernel(self.down), sizes)

    def _middle(self, product: Callable[[Array], Array]) -> Array:
        if self.gated is None:
            return gelu(product(self._kernel(self.up)))
        gate = product(self._kernel(self.gate))
        return rounded_once(self.gated)(gate, product(self._kernel(self.up)))

    def _kernel(self, kernel: nnx.Param[Array]) -> Array:
        return kernel[...].astype(self.dtype)
