"""One stage in one pass through a program: what it computes, and what it holds meanwhile.

What is held goes as soon as it is used: residuals with their backward, or, where that is split, a
part with each half. Each method returns once all is computed, so that its time can be taken.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from jaxpipe.comm import HostOrDeviceArray
from jaxpipe.runtime.stage.compile import CompiledStage
from jaxpipe.runtime.stage.gradient_buckets import Buckets
from jaxpipe.runtime.stage.model import Parameters
from jaxpipe.runtime.stage.split_backward import Carried
from jaxpipe.runtime.stage.train_state import StageState
from jaxpipe.runtime.stage.vjp import Residuals
from jaxpipe.schedule import Op


@dataclass(slots=True, kw_only=True)
class StageRun:
    """A stage, its state, and what its microbatches in flight hold; `gradients` while it trains.

    `scale` is that of the loss, if it is scaled.
    """

    compiled: CompiledStage
    state: StageState
    compute: Parameters
    gradients: Parameters | None
    scale: float | None = None
    buckets: Buckets = field(default_factory=dict)
    residuals: dict[int, Residuals] = field(default_factory=dict)
    carried: dict[int, Carried] = field(default_factory=dict)
    updated: Parameters | None = None

    @property
    def loss_cotangent(self) -> HostOrDeviceArray:
        """What the backward of the last stage starts from."""
        plain = self.compiled.loss_cotangent
        return plain if self.scale is None else jnp.float32(float(plain) * self.scale)

    def forward(
        self,
        microbatch: int,
        x: HostOrDeviceArray,
        targets: HostOrDeviceArray | None,
        position: np.ndarray,
    ) -> HostOrDeviceArray:
        """Return the output for a microbatch; residuals stay while the stage trains."""
        if self.gradients is None:
            return jax.block_until_ready(self.compiled.evaluate(self.compute, x, targets))
        output, self.residuals[microbatch] = jax.block_until_ready(
            self.compiled.forward(self.compute, x, targets, position)
        )
        return output

    def backward(self, microbatch: int, cotangent: HostOrDeviceArray) -> HostOrDeviceArray | None:
        """Add the gradients of the weights; return that of the input, which tokens have not.

        `cotangent` is the gradient of the output.
        """
        of_input, self.gradients = jax.block_until_ready(
            self.compiled.backwards[Op.BACKWARD](
                self.compute, self.residuals.pop(microbatch), cotangent, self.gradients
            )
        )
        return of_input

    def backward_input(
        self, microbatch: int, cotangent: HostOrDeviceArray
    ) -> HostOrDeviceArray | None:
        """Return the gradient of the input alone, and hold what `backward_weight` needs."""
        split, residuals = self.compiled.split, self.residuals.pop(microbatch)
        assert split is not None, "compiled for a schedule that splits no backward"
        of_input, crossing = jax.block_until_ready(
            self.compiled.backwards[Op.BACKWARD_INPUT](self.compute, residuals, cotangent)
        )
        self.carried[microbatch] = split.carry(residuals, cotangent, crossing)
        return of_input

    def backward_weight(self, microbatch: int) -> None:
        """Add the gradients of the weights, after `backward_input`."""
        self.gradients = jax.block_until_ready(
            self.compiled.backwards[Op.BACKWARD_WEIGHT](
                self.compute, self.carried.pop(microbatch), self.gradients
            )
        )

    def pack(self) -> Buckets:
        """Return the gradients as they travel; nothing can be added to them any more."""
        if not self.buckets:
            assert self.gradients is not None, "only a stage that trains has gradients"
            assert not self.residuals, self.residuals.keys()
            assert not self.carried, self.carried.keys()
            self.buckets = self.compiled.pack(self.gradients)
            self.gradients = {}
        return self.buckets

    def square_norm(self) -> float:
        """Return this stage's part of the squared norm of the gradient."""
        return float(self.compiled.square_norm(self.buckets))

    def update(self, square_norm: float) -> None:
        """Apply the optimizer, given the squared norm over all stages, which is not scaled.

        Where replicas share the optimizer out, `gather` the parameters of all of them next.
        """
        scale = () if self.scale is None else (np.float32(self.scale),)
        params, moments = jax.block_until_ready(
            self.compiled.update(
                self.state.params, self.state.moments, self.buckets, np.float32(square_norm), *scale
            )
        )
        if self.compiled.join is not None:
            self.updated, params = params, self.state.params
        self.state = StageState(params=params, moments=moments)

    def gather(self, gather: Callable[..., np.ndarray]) -> None:
        """Take the parameters that all replicas have updated, which `gather` makes of shares."""
        functions, held = self.compiled.shared_out, self.updated
        assert functions is not None, "each replica has updated everything"
        assert self.compiled.join is not None, "each replica has updated everything"
        assert held is not None, "nothing is updated yet"
        self.updated = None
        flat = gather(functions.own(held), size=functions.num_shared_out())
        for leaf in jax.tree.leaves(self.state.params):
            leaf.delete()
        params = jax.block_until_ready(self.compiled.join(flat, held))
        self.state = StageState(params=params, moments=self.state.moments)
