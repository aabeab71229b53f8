"""`StageCalls`: the interface between the interpreter and the computations of a stage.

::

    init ──► parameters, moments         cast ──► parameters in the compute dtype
    zeros ──► gradients                  evaluate ──► output

    forward ─► residuals ─┬─► backward ─────────────────────────┐
                          └─► backward_input ─► backward_weight ┴─► gradients
    gradients ─► pack ─► buckets ─► (all-reduce) ─► square_norm ─► update ─► (all-gather) ─► join

`StageFunctions` implements it as pure functions that a trace can go through, `CompiledStage` as
executables of XLA, and `jaxpipe.paced` as waits of the same length.
"""

from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import jax
import numpy as np
import optax

from jaxpipe.comm import HostOrDeviceArray
from jaxpipe.runtime.stage.gradient_buckets import Buckets
from jaxpipe.runtime.stage.mesh import StageLayout
from jaxpipe.runtime.stage.model import Parameters
from jaxpipe.runtime.stage.placed import SampleParts
from jaxpipe.runtime.stage.split_backward import Carried
from jaxpipe.runtime.stage.vjp import Residuals
from jaxpipe.runtime.stage.zero1 import ShardedParameters

Scalar: TypeAlias = HostOrDeviceArray | np.floating

TargetArrays: TypeAlias = HostOrDeviceArray | SampleParts | None
"""Targets, which the last stage reads; of packed samples and behind bottlenecks, more."""

OutputArrays: TypeAlias = HostOrDeviceArray | tuple[HostOrDeviceArray, HostOrDeviceArray]
"""What a forward returns, or its cotangent.

An activation; at the last stage the loss; at another stage whose layers add to the loss, a pair of
both.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """The position of a stage in its pipeline, and the shapes that cross its boundaries.

    `activation` is what one microbatch sends to the next stage, `received` what it gets from the
    one before; of the first stage, the input of the first layer. `loss_cotangent` is the cotangent
    of the loss, from which the backward of the last stage starts. `sharded` is None unless replicas
    shard the optimizer (ZeRO-1). Where some targets do not count, samples are `masked`: the
    cotangent is that of a mean over all targets, and `update` takes the scale that corrects it.
    A stage with a bottleneck before one of its layers `reads_tokens`, unless they are its input.
    """

    is_first: bool
    is_last: bool
    layout: StageLayout
    received: jax.ShapeDtypeStruct
    activation: jax.ShapeDtypeStruct
    loss_cotangent: HostOrDeviceArray
    sharded: ShardedParameters | None = None
    masked: bool = False
    reads_tokens: bool = False


@runtime_checkable
class StageCalls(Protocol):
    """One method per computation of a stage; arguments are positional, as XLA takes them.

    `compute` are the parameters in the compute dtype, from `cast`. Of a microbatch, `residuals` are
    kept from its forward to its backward, or `carried` from one half of a split backward to the
    other.
    """

    @property
    def spec(self) -> StageSpec:
        """The position of the stage, and the shapes at its boundaries."""
        ...

    def init(self) -> tuple[Parameters, optax.OptState]:
        """Return fresh parameters and moments."""
        ...

    def cast(self, params: Parameters, /) -> Parameters:
        """Return the parameters in the compute dtype; once a step."""
        ...

    def zeros(self) -> Parameters:
        """Return gradients of zero."""
        ...

    def forward(
        self,
        compute: Parameters,
        x: HostOrDeviceArray,
        targets: TargetArrays,
        position: HostOrDeviceArray,
        /,
    ) -> tuple[OutputArrays, Residuals]:
        """Return the output for one microbatch, and the residuals."""
        ...

    def evaluate(
        self, compute: Parameters, x: HostOrDeviceArray, targets: TargetArrays, /
    ) -> HostOrDeviceArray:
        """Return the output without dropout, and no residuals."""
        ...

    def backward(
        self,
        compute: Parameters,
        residuals: Residuals,
        cotangent: OutputArrays,
        gradients: Parameters,
        /,
    ) -> tuple[HostOrDeviceArray | None, Parameters]:
        """Return the gradient of the input (None for samples) and the accumulated `gradients`."""
        ...

    def backward_input(
        self, compute: Parameters, residuals: Residuals, cotangent: OutputArrays, /
    ) -> tuple[HostOrDeviceArray | None, Carried]:
        """Return the gradient of the input (None for samples), and what `backward_weight` reads."""
        ...

    def backward_weight(
        self, compute: Parameters, carried: Carried, gradients: Parameters, /
    ) -> Parameters:
        """Return the accumulated `gradients` of the weights."""
        ...

    def pack(self, gradients: Parameters, /) -> Buckets:
        """Return the gradients as one vector per bucket, as they are all-reduced."""
        ...

    def square_norm(self, buckets: Buckets, /) -> HostOrDeviceArray:
        """Return the contribution of this stage to the squared global norm."""
        ...

    def update(
        self,
        params: Parameters,
        moments: optax.OptState,
        buckets: Buckets,
        square_norm: Scalar,
        scale: Scalar | None = None,
        /,
    ) -> tuple[Parameters, optax.OptState]:
        """Return the updated parameters and moments; gradients are divided by a given `scale`.

        With a sharded optimizer these parameters are the pieces that this replica updates: an
        all-gather and `join` make whole ones of them.
        """
        ...

    def join(self, vectors: tuple[np.ndarray, ...], updated: Parameters, /) -> Parameters:
        """Return whole parameters from the gathered vectors and this replica's own pieces."""
        ...
