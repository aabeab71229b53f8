"""What the intra-operator search lets a layer communicate along op, per microbatch.

It is searched for the smallest and for the largest number of samples. In between, and beyond, the
seconds are linear in samples, as the bytes of activations are.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxpipe.baselines.autoshard.graph import trace_step
from jaxpipe.baselines.autoshard.intra_op import Machine, SearchConfig, find_strategy
from jaxpipe.baselines.autoshard.spmd import LossModel, initial_state, train_step
from jaxpipe.baselines.autoshard.strategy import AxisLink, MeshShape, collective_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedCollectives:
    """The seconds of collectives of a layer and of both ends, searched once for each size.

    A model of one layer and one of two are searched: their difference is a layer.

    Args:
        model: makes the model with a number of layers.
        sequence: tokens of a sample.
        dtype: the format of computation.
        remat: whether layers are recomputed.
        machine: the speed of a device.
        ring_bytes_per_s: of a ring through a group of devices.
        fewest: samples of the smallest search.
        most: samples of the largest search.
    """

    model: Callable[[int], LossModel]
    sequence: int
    dtype: str
    remat: bool
    machine: Machine
    ring_bytes_per_s: Callable[[int], float]
    fewest: int = 1
    most: int = 16
    _known: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)

    def __call__(self, op: int, samples: int) -> tuple[float, float]:
        """Return the seconds of a layer, and of embedding and head together."""
        if op == 1:
            return 0.0, 0.0
        few, many = self._searched(op, self.fewest), self._searched(op, self.most)
        part = (samples - self.fewest) / (self.most - self.fewest)
        layer, ends = (a + part * (b - a) for a, b in zip(few, many, strict=True))
        return layer, ends

    def _searched(self, op: int, samples: int) -> tuple[float, float]:
        if (op, samples) not in self._known:
            one, two = (self._searched_s(number, op, samples) for number in (1, 2))
            layer = max(two - one, 0.0)
            self._known[op, samples] = layer, max(one - layer, 0.0)
        return self._known[op, samples]

    def _searched_s(self, num_layers: int, op: int, samples: int) -> float:
        model, optimizer = self.model(num_layers), optax.adam(1e-4)
        state = jax.eval_shape(
            lambda key: initial_state(model, optimizer, key, dtype=self.dtype), jax.random.key(0)
        )
        tokens = jax.ShapeDtypeStruct((samples, self.sequence), jnp.int32)
        step = train_step(model, optimizer, remat=self.remat)

        def run(*trees: Any) -> Any:
            return step(*trees)[0]

        names = ("state", "tokens", "targets")
        graph = trace_step(run, state, tokens, tokens, names=names, result_names=("state",))
        link = AxisLink(bandwidth_bytes_per_s=self.ring_bytes_per_s(op))
        mesh = MeshShape(dp=1, op=op, op_link=link)
        config = SearchConfig(force_batch_axis=True)
        priced = find_strategy(graph, mesh, self.machine, config=config).priced
        return sum(collective_s(collective, mesh) for collective in priced.collectives)
