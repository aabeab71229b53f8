"""The costs of a mixture of experts in closed form, without jax: FLOPs, parameters, residuals.

Per routing group, a sequence by default, with S = its tokens, D = dim, E = experts, k = experts per
token, C = capacity and R = E C rows of the experts, or k S rows where tokens are sorted:

    ==========  =============  ==============================================
    router      2 S D E FLOP
    dispatch    2 S R D        the product with the mask; 0 for sorted tokens
    up, down    2 R D H        each, for experts H wide; with a gate also the product with that
    combine     2 S R D        0 for sorted tokens
    ==========  =============  ==============================================

All slots count, whether a token has them or not. FLOPs of sorted tokens are those of a backend with
ragged products; XLA for CPUs computes more.
"""

from dataclasses import dataclass
from typing import TypeAlias

from jaxpipe.models.gpt_config import DTYPE_BYTES, GptConfig
from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.models.moe.routing import Dispatch, Routing

Sparse: TypeAlias = GptConfig | LlamaConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureFlops:
    """The FLOPs of the products of one mixture, in its forward; those of a gate are in `up`."""

    router: int
    dispatch: int
    up: int
    down: int
    combine: int

    @property
    def forward(self) -> int:
        """All products."""
        return self.router + self.dispatch + self.up + self.down + self.combine

    @property
    def backward(self) -> int:
        """Two products for each of the forward; but the mask of the dispatch has no gradient."""
        return 2 * self.forward - self.dispatch


def mixture_flops(config: Sparse, *, batch: int, sequence: int) -> MixtureFlops:
    """Return the FLOPs of one mixture."""
    routing = _routing(config)
    batch, sequence = _grouped(routing, batch, sequence)
    rows, tokens = batch * _rows(routing, sequence), batch * sequence
    masks = 0 if _is_sorted(routing) else 2 * sequence * rows * config.dim
    kernel = 2 * rows * config.dim * config.hidden
    return MixtureFlops(
        router=2 * tokens * config.dim * routing.experts,
        dispatch=masks,
        up=_inputs(config) * kernel,
        down=kernel,
        combine=masks,
    )


def mixture_parameters(config: Sparse) -> int:
    """Return the number of parameters of one mixture: router and experts."""
    experts = _routing(config).experts
    kernels = 1 + _inputs(config)
    return config.dim * experts + kernels * experts * config.dim * config.hidden


def mixture_residual_bytes(config: Sparse, *, batch: int, sequence: int) -> int:
    """Return what one mixture keeps without rematerialisation, its input excluded.

    Of each row of the experts their input, the products of the middle, the middle itself and the
    output; the two masks and the numbers of the chosen experts, or for sorted tokens their order.
    """
    routing = _routing(config)
    batch, sequence = _grouped(routing, batch, sequence)
    num_bytes, rows = DTYPE_BYTES[config.compute_dtype], _rows(routing, sequence)
    choices = sequence * routing.experts_per_token
    middle = (1 + _inputs(config)) * config.hidden
    residuals = rows * (2 * config.dim + middle) * num_bytes
    residuals += 4 * sequence * routing.experts if routing.z_loss else 0
    if _is_sorted(routing):
        # Two index arrays, the gates, and once the sizes of the groups; the balance loss counts the
        # choices before they are sorted.
        residuals += 4 * choices if routing.balance_loss else 0
        total = batch * (residuals + choices * (8 + num_bytes)) + 4 * routing.experts
    else:
        total = batch * (residuals + 4 * choices + 2 * sequence * rows * num_bytes)
    return total + (4 if routing.has_loss else 0)  # the loss itself


def router_residual_bytes(config: Sparse, *, batch: int, sequence: int) -> int:
    """Return what one mixture keeps where the results of products with weights are kept."""
    routing = _routing(config)
    # The logits are float32; the z-loss keeps a copy of its own.
    return 4 * batch * sequence * routing.experts * (2 if routing.z_loss else 1)


def _inputs(config: Sparse) -> int:
    """Return the kernels of an expert that read the token: `up`, and perhaps `gate`."""
    return 2 if isinstance(config, LlamaConfig) else 1


def _routing(config: Sparse) -> Routing:
    assert config.routing is not None, config
    return config.routing


def _grouped(routing: Routing, batch: int, sequence: int) -> tuple[int, int]:
    """Return the routing groups of a batch and their tokens; of one sample, it is a group."""
    is_part = batch % max(1, routing.groups) != 0
    return (batch, sequence) if is_part else routing.grouped(batch, sequence)


def _rows(routing: Routing, sequence: int) -> int:
    if _is_sorted(routing):
        return sequence * routing.experts_per_token
    return routing.experts * routing.capacity(sequence)


def _is_sorted(routing: Routing) -> bool:
    return routing.dispatch is Dispatch.RAGGED
