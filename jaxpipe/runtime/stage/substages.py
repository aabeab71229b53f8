"""Substages: a deep stage is compiled for few layers, and the executables are called in a row.

XLA compiles unrolled layers one by one, although they are equal: a stage of 48 layers took two and
a half times the processor time of one of 4 (measured). A deep stage is therefore a chain of
substages, of which all but the ends share their executables::

    embedding, 2 layers ─► 2 layers ─► 2 layers ─► ... ─► 2 layers, head, loss

A substage is a stage of its own to the functions that are compiled. Which of its model's layers it
holds shows in the dropout alone, whose key depends on the number of the layer: those between the
ends read the number of their first layer as the third of `position`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from jaxpipe.comm import HostOrDeviceArray
from jaxpipe.runtime.config import Loop
from jaxpipe.runtime.stage.calls import OutputArrays, StageCalls, TargetArrays
from jaxpipe.runtime.stage.functions import StageFunctions
from jaxpipe.runtime.stage.model import Parameters, bottlenecks_of, equal_layers
from jaxpipe.runtime.stage.trained import overlay, restrict

LEAST_LAYERS: Final = 20
"""Of a stage that is a chain; below, three sets of executables take as long to compile as one."""
_LAYERS: Final = 2
"""Of each substage but the first, which has those that are left, too."""
_BLOCKS: Final = "blocks"


def substages(functions: StageFunctions) -> tuple[StageFunctions, ...]:
    """Return the functions of the substages of a stage; none if it is compiled as a whole.

    Those between the ends are equal. Layers that differ or add to the loss, packed samples, meshes
    and bottlenecks are compiled as a whole, and so is everything on accelerators, where nothing of
    it was measured.
    """
    stage, layers = functions.stage, functions.stage.layers
    if (
        len(layers) < LEAST_LAYERS
        or stage.loop is not Loop.UNROLLED
        or stage.layout.mesh is not None
        or functions.work.packed
        or bottlenecks_of(stage.model)
        or len(equal_layers(stage.model, layers)) > 1
        or jax.default_backend() != "cpu"
    ):
        return ()
    num_between, rest = divmod(len(layers) - 2 * _LAYERS, _LAYERS)
    ends = layers[: _LAYERS + rest], layers[-_LAYERS:]
    between = layers[ends[0].stop - layers.start :][:_LAYERS]
    # Of three stages, the one in the middle has neither end.
    indices = (0 if stage.is_first else 1), 1, (2 if stage.is_last else 1)
    first, middle, last = (
        replace(functions, stage=replace(stage, index=index, num_stages=3, layers=rows))
        for index, rows in zip(indices, (ends[0], between, ends[1]), strict=True)
    )
    if isinstance(jax.eval_shape(lambda: _output(middle)), tuple):
        return ()  # what layers add to the loss
    return (first, *(middle,) * num_between, last)


def _output(functions: StageFunctions) -> Any:
    """Return the output of a forward for parameters of any values."""
    compute, spec = functions.cast(functions.init()[0]), functions.spec
    x = jnp.zeros(spec.received.shape, spec.received.dtype)
    return functions.forward(compute, x, None, jnp.zeros(3, jnp.int32))[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A substage in a chain: its calls, its rows of the layers, and what it reads of the ends.

    `compute_ends` and `gradient_ends` are trees whose leaves it has of the embedding and the head.
    """

    calls: StageCalls
    rows: slice
    first_layer: int
    compute_ends: Parameters
    gradient_ends: Parameters

    def compute(self, whole: Parameters) -> Parameters:
        """Return the parameters of the substage."""
        return self._piece(whole, self.compute_ends)

    def gradients(self, whole: Parameters) -> Parameters:
        """Return the gradients of the substage."""
        return self._piece(whole, self.gradient_ends)

    def _piece(self, whole: Parameters, ends: Parameters) -> Parameters:
        return {**restrict(whole, ends), _BLOCKS: whole[_BLOCKS][self.rows]}


@dataclass(frozen=True, slots=True)
class Chain:
    """The calls of a stage by those of its substages, in their order."""

    links: Sequence[Link]

    def forward(
        self,
        compute: Parameters,
        x: HostOrDeviceArray,
        targets: TargetArrays,
        position: HostOrDeviceArray,
    ) -> tuple[OutputArrays, Any]:
        """Return the output for one microbatch, and the residuals of each substage."""
        residuals = []
        output: Any = x
        for link in self.links:
            place = np.array((*np.asarray(position), link.first_layer), np.int32)
            output, kept = link.calls.forward(
                link.compute(compute), output, self._of(link, targets), place
            )
            residuals.append(kept)
        return output, tuple(residuals)

    def evaluate(
        self, compute: Parameters, x: HostOrDeviceArray, targets: TargetArrays
    ) -> HostOrDeviceArray:
        """Return the output without dropout."""
        for link in self.links:
            x = link.calls.evaluate(link.compute(compute), x, self._of(link, targets))
        return x

    def backward(
        self,
        compute: Parameters,
        residuals: Any,
        cotangent: Any,
        gradients: Parameters,
    ) -> tuple[HostOrDeviceArray | None, Parameters]:
        """Return the gradient of the input and the accumulated `gradients`, which are donated."""
        for link, kept in zip(reversed(self.links), reversed(residuals), strict=True):
            of_link = link.gradients(gradients)
            cotangent, of_link = link.calls.backward(
                link.compute(compute), kept, cotangent, of_link
            )
            gradients = _with_piece(gradients, of_link, link.rows)
        return cotangent, gradients

    def backward_input(
        self, compute: Parameters, residuals: Any, cotangent: Any
    ) -> tuple[HostOrDeviceArray | None, Any]:
        """Return the gradient of the input, and what `backward_weight` reads."""
        carried = []
        for link, kept in zip(reversed(self.links), reversed(residuals), strict=True):
            cotangent, of_link = link.calls.backward_input(link.compute(compute), kept, cotangent)
            carried.append(of_link)
        return cotangent, tuple(reversed(carried))

    def backward_weight(
        self, compute: Parameters, carried: Any, gradients: Parameters
    ) -> Parameters:
        """Return the accumulated `gradients` of the weights, which are donated."""
        for link, of_link in zip(self.links, carried, strict=True):
            added = link.calls.backward_weight(
                link.compute(compute), of_link, link.gradients(gradients)
            )
            gradients = _with_piece(gradients, added, link.rows)
        return gradients

    def _of(self, link: Link, targets: TargetArrays) -> TargetArrays:
        return targets if link is self.links[-1] else None


def _with_piece(whole: Parameters, piece: Parameters, rows: slice) -> Parameters:
    """Return a tree with the leaves of a substage in place of its own."""
    layers = whole[_BLOCKS]
    blocks = (*layers[: rows.start], *piece[_BLOCKS], *layers[rows.stop :])
    ends = {name: part for name, part in piece.items() if name != _BLOCKS}
    return {**overlay(whole, ends), _BLOCKS: blocks}
