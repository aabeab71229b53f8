"""The line of an island that is replayed: what the log says comes in the place of a server.

::

    replay ── give: stretch, anchor ──► ReplayLine ──► island trains ──► delivery ──► replay
"""

import queue
import time
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import numpy as np

from jaxpipe.collective import CodecKind, codec_of
from jaxpipe.errors import RunError
from jaxpipe.outer.merge_lineage import Stretch
from jaxpipe.outer.quorum import Delivery, digest_of
from jaxpipe.run.quorum.messages import packed, unpacked

_POLL_S: Final = 0.2
_PATIENCE_S: Final = 86400.0
"""The longest time that others, on the same machine, may need for their steps."""

_Tensors = dict[str, np.ndarray]
_T = TypeVar("_T")


class ReplayLine:
    """Hands an island its anchors, stretch by stretch, and asks for a delivery where one was made.

    `fresh` has the parameters with which the island begins, once it has begun. `is_over` ends all
    waits; it raises the error of the island, if it has failed.
    """

    def __init__(self, island: int, codec: CodecKind, *, is_over: Callable[[], bool]) -> None:
        self.num_bytes = 0
        self._island = island
        self._codec = codec_of(codec)
        self._is_over = is_over
        self._fresh: queue.Queue[_Tensors] = queue.Queue()
        self._anchors: queue.Queue[tuple[Stretch, _Tensors]] = queue.Queue()
        self._deliveries: queue.Queue[Delivery] = queue.Queue()
        self._current: tuple[Stretch, _Tensors] | None = None
        self._has_begun, self._steps = False, 0

    def start(self, tensors: Mapping[str, np.ndarray], *, step: int) -> tuple[int, _Tensors]:
        """Return the anchor of the next stretch, once the replay has come there.

        Raises:
            RunError: the replay is over.
        """
        if not self._has_begun:
            self._has_begun = True
            self._fresh.put(dict(tensors))
        stretch, anchor = self._current = self._waited(self._anchors)
        assert stretch.start == step, (stretch, step)
        self._steps = 0
        return stretch.anchor, anchor

    def asked(self, number: int) -> bool:
        """Return whether the island had delivered after this step; called once after each."""
        assert self._current is not None, number
        stretch, _ = self._current
        self._steps += 1
        return stretch.start + self._steps == stretch.delivered

    def deliver(
        self,
        gradients: Mapping[str, np.ndarray],
        *,
        base: int,
        step: int,
        steps: int,
        tokens: float,
    ) -> tuple[int, _Tensors]:
        """Take a delivery as the server got it; return the old anchor, which nothing uses."""
        assert self._current is not None, base
        stretch, anchor = self._current
        # A run delivers after its last step, also what no server has merged.
        if step == stretch.delivered:
            shapes = {name: gradient.shape for name, gradient in gradients.items()}
            received = unpacked(packed(gradients, self._codec), shapes, self._codec)
            delivery = Delivery(
                island=self._island,
                base=base,
                step=step,
                steps=steps,
                tokens=tokens,
                gradients=received,
                digest=digest_of(received),
            )
            self._deliveries.put(delivery)
        return base, anchor

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def fresh(self) -> _Tensors:
        """Wait for the parameters with which the island begins.

        Raises:
            JaxpipeError: the island has failed.
        """
        return self._waited(self._fresh)

    def give(self, stretch: Stretch, anchor: _Tensors) -> None:
        """Let the island train a stretch, when it has come there."""
        self._anchors.put((stretch, anchor))

    def delivery(self) -> Delivery:
        """Wait for the next delivery.

        Raises:
            JaxpipeError: the island has failed.
        """
        return self._waited(self._deliveries)

    def _waited(self, items: "queue.Queue[_T]") -> _T:
        until_s = time.monotonic() + _PATIENCE_S
        while not self._is_over() and time.monotonic() < until_s:
            try:
                return items.get(timeout=_POLL_S)
            except queue.Empty:
                continue
        raise RunError(f"island {self._island} ends with the replay")
