"""One stage while a program runs: what it computes, and what it keeps between instructions.

Whatever is kept is released as soon as it is used: residuals by their backward, or, where that is
split, part of them by each half. Forwards and backwards return what the device has been given to
compute, and may return before it has: `take_dispatched` is what to wait for.
"""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpipe.comm import HostOrDeviceArray
from jaxpipe.runtime.stage.calls import OutputArrays, StageCalls, TargetArrays
from jaxpipe.runtime.stage.gradient_buckets import Buckets
from jaxpipe.runtime.stage.model import Parameters
from jaxpipe.runtime.stage.split_backward import Carried
from jaxpipe.runtime.stage.train_state import StageState
from jaxpipe.runtime.stage.trained import overlay, restrict
from jaxpipe.runtime.stage.vjp import Residuals


@jax.jit
def _first_element(array: jax.Array) -> jax.Array:
    return array.reshape(-1)[0]


@dataclass(frozen=True, slots=True)
class Dispatched:
    """Arrays that one call computes; `donated` are those that a later call overwrites."""

    kept: Any
    donated: Any = None

    def wait(self) -> None:
        """Wait until all are computed; before the call that overwrites some of them."""
        jax.block_until_ready((self.kept, self.donated))

    def marker(self) -> Any:
        """Return an array that is ready once all are computed; it keeps none of the large ones.

        All results of a call are ready together. An array that a later call overwrites cannot be
        waited for any more: its first element, copied behind the call, stands for it.
        """
        leaves = jax.tree.leaves(self.kept)
        if leaves:
            return leaves[0]
        return _first_element(min(jax.tree.leaves(self.donated), key=lambda leaf: leaf.size))


@dataclass(slots=True, kw_only=True)
class StageRun:
    """A stage, its state, and the arrays of its microbatches in flight.

    `gradients` is None where the stage is only evaluated. `scale` is that of the loss, if it is
    scaled. `updated` are the pieces of a sharded optimizer, from `update` to `join`. `adds_loss`
    tells whether layers of a stage that is not the last one add to the loss.
    """

    calls: StageCalls
    state: StageState
    compute: Parameters
    gradients: Parameters | None
    scale: float | None = None
    buckets: Buckets = field(default_factory=dict)
    residuals: dict[int, Residuals] = field(default_factory=dict)
    carried: dict[int, Carried] = field(default_factory=dict)
    updated: Parameters | None = None
    adds_loss: bool = False
    _dispatched: Dispatched | None = None

    def take_dispatched(self) -> Dispatched:
        """Return what the latest forward or backward computes; once, as it keeps arrays alive."""
        dispatched, self._dispatched = self._dispatched, None
        assert dispatched is not None, "nothing was dispatched since it was taken"
        return dispatched

    @property
    def loss_cotangent(self) -> HostOrDeviceArray:
        """The cotangent of the loss, from which the backward of the last stage starts."""
        unscaled = self.calls.spec.loss_cotangent
        # Scaling the cotangent scales all gradients, and costs nothing; the loss itself is not.
        if self.scale is None:
            return unscaled
        return jnp.asarray(float(unscaled) * self.scale, unscaled.dtype)

    def forward(
        self,
        microbatch: int,
        x: HostOrDeviceArray,
        targets: TargetArrays,
        position: np.ndarray,
    ) -> tuple[HostOrDeviceArray | None, HostOrDeviceArray | None]:
        """Return the activation for the next stage, and the loss; None for what there is not.

        Where the stage trains, keep the residuals.
        """
        if self.gradients is None:
            output = self.calls.evaluate(self.compute, x, targets)
        else:
            output, residuals = self.calls.forward(self.compute, x, targets, position)
            self.residuals[microbatch] = residuals
        self._dispatched = Dispatched(output)
        if isinstance(output, tuple):
            self.adds_loss = True
            return output
        return (None, output) if self.calls.spec.is_last else (output, None)

    def backward(
        self, microbatch: int, of_activation: HostOrDeviceArray | None
    ) -> HostOrDeviceArray | None:
        """Accumulate the gradients of the weights; return that of the input, None for samples.

        `of_activation` is the gradient of the activation, None at the last stage.
        """
        cotangent = self._cotangent(of_activation)
        # `pop`: residuals are the largest arrays of a step, and must not outlive their backward.
        residuals, gradients = self.residuals.pop(microbatch), self._accumulated()
        of_input, gradients = self.calls.backward(self.compute, residuals, cotangent, gradients)
        self.gradients, self._dispatched = gradients, Dispatched(of_input, gradients)
        return of_input

    def backward_input(
        self, microbatch: int, of_activation: HostOrDeviceArray | None
    ) -> HostOrDeviceArray | None:
        """Return the gradient of the input alone, and keep what `backward_weight` needs."""
        cotangent = self._cotangent(of_activation)
        residuals = self.residuals.pop(microbatch)
        of_input, carried = self.calls.backward_input(self.compute, residuals, cotangent)
        self.carried[microbatch] = carried
        self._dispatched = Dispatched(carried if of_input is None else of_input)
        return of_input

    def backward_weight(self, microbatch: int) -> None:
        """Accumulate the gradients of the weights, after `backward_input`."""
        carried, gradients = self.carried.pop(microbatch), self._accumulated()
        gradients = self.calls.backward_weight(self.compute, carried, gradients)
        self.gradients, self._dispatched = gradients, Dispatched(None, gradients)

    def pack(self) -> Buckets:
        """Return the gradients as buckets; from now on nothing can be accumulated."""
        if not self.buckets:
            assert not self.residuals, self.residuals.keys()
            assert not self.carried, self.carried.keys()
            # The last backward is over: a copy in the dtype of the computes gives way to vectors.
            self.compute = {}
            self.buckets = self.calls.pack(self._accumulated())
            self.gradients = {}  # not None, which means evaluation; the arrays are released
        return self.buckets

    def square_norm(self) -> float:
        """Return this stage's contribution to the squared norm of the gradient."""
        return float(self.calls.square_norm(self.buckets))

    def update(self, square_norm: float, *, scale: float | None = None) -> None:
        """Apply the optimizer, given the squared norm over all stages, which is not scaled.

        Gradients are divided by `scale`, if it is given. With a sharded optimizer, an all-gather of
        `own_shards` and `join` come next.
        """
        number = np.dtype(self.calls.spec.loss_cotangent.dtype).type
        divisor = None if scale is None else number(scale)
        given = (self.state.params, self.state.moments, self.buckets, number(square_norm))
        params, moments = jax.block_until_ready(self.calls.update(*given, divisor))
        if self.calls.spec.sharded is not None:
            self.updated, params = params, self.state.params
        self.state = StageState(params=params, moments=moments)

    def own_shards(self) -> tuple[np.ndarray, ...]:
        """Return the pieces that this replica has updated, as one vector for each segment."""
        sharded = self.calls.spec.sharded
        assert sharded is not None, "the optimizer is not sharded"
        assert self.updated is not None, "nothing is updated yet"
        return sharded.vectors(self.updated)

    def join(self, vectors: tuple[np.ndarray, ...]) -> None:
        """Replace the parameters by those that all replicas have updated; frozen ones stay."""
        assert self.updated is not None, "nothing is updated yet"
        updated, self.updated = self.updated, None
        # The old parameters go first: both sets at once would be the peak memory of the step.
        for leaf in jax.tree.leaves(restrict(self.state.params, updated)):
            leaf.delete()
        joined = jax.block_until_ready(self.calls.join(vectors, updated))
        params = overlay(self.state.params, joined)
        self.state = StageState(params=params, moments=self.state.moments)

    def _cotangent(self, of_activation: HostOrDeviceArray | None) -> OutputArrays:
        if of_activation is None:
            return self.loss_cotangent
        return (of_activation, self.loss_cotangent) if self.adds_loss else of_activation

    def _accumulated(self) -> Parameters:
        assert self.gradients is not None, "only a stage that trains has gradients"
        return self.gradients
