"""The line of an island to the merge server; its rank 0 holds it."""

import select
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from jaxpipe.collective import codec_of
from jaxpipe.config import Config
from jaxpipe.errors import ConfigError, RunError
from jaxpipe.foreign_file import read_json, reason_of
from jaxpipe.installed import version_of
from jaxpipe.outer import QuorumConfig
from jaxpipe.run.hosts.join_run import join_and_stay, where
from jaxpipe.run.hosts.join_words import MOST_BYTES, JoinAddress
from jaxpipe.run.quorum.messages import (
    Anchor,
    Ask,
    Bye,
    Deliver,
    FirstAnchor,
    Head,
    Hello,
    MessageError,
    Refused,
    Wanted,
    keep_alive,
    packed,
    payload_bytes,
    receive,
    send,
    unpacked,
)

MERGE_FILE: Final = "merge.json"
"""The address and the key of a merge server, in its folder."""

_PAUSE_S = 60.0
"""The longest pause within a message."""
_AGAIN_S = 1.0
"""Between two attempts to reach a server that has gone."""

_Tensors = dict[str, np.ndarray]


def merge_line(config: Config, *, say: Callable[[str], object]) -> "MergeLine | None":
    """Return the line of a run, which connects later; None for a run that is no island.

    Raises:
        ConfigError: `quorum.server` is no file of a merge server.
    """
    if not config.quorum.is_on:
        return None
    return MergeLine(
        server_address(config.quorum),
        config.quorum,
        batch=config.train.batch,
        seed=config.run.seed,
        versions=version_of("jaxpipe"),
        say=say,
    )


def server_address(quorum: QuorumConfig) -> JoinAddress:
    """Return the address in the file that `quorum.server` names.

    Raises:
        ConfigError: there is no such file, or it is another one.
    """
    file = Path(quorum.server)
    file = file / MERGE_FILE if file.is_dir() else file
    rule = f"`quorum.server` must be the `{MERGE_FILE}` of `jaxpipe merge`, or its folder"
    try:
        return read_json(file, JoinAddress, most_bytes=MOST_BYTES)
    except OSError as error:
        raise ConfigError(f"{rule}: {str(file)!r:.80}: {reason_of(error)}") from error
    except ValueError as error:
        raise ConfigError(f"{rule}: {str(file)!r:.80} is another file: {error}") from error


class MergeLine:
    """One island's connection; a server that goes, and comes back in time, is connected again.

    `num_bytes` counts what was delivered; `say` is called with a line for the terminal.
    """

    def __init__(
        self,
        address: JoinAddress,
        config: QuorumConfig,
        *,
        batch: int,
        seed: int,
        versions: str,
        say: Callable[[str], object],
    ) -> None:
        self._address = address
        self._config = config
        self._batch, self._seed, self._versions = batch, seed, versions
        self._say = say
        self._codec = codec_of(config.codec)
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._connection: socket.socket | None = None
        self._asked_for = 0
        self.num_bytes = 0

    def start(self, tensors: Mapping[str, np.ndarray], *, step: int) -> tuple[int, _Tensors]:
        """Return the anchor and its number; the first island's `tensors` become it.

        The island has done `step` inner steps.

        Raises:
            ConfigError: the server refuses this island.
            RunError: the server cannot be reached in time, or has another key.
        """
        self._shapes = {name: tensor.shape for name, tensor in tensors.items()}
        return self._until_it_works(lambda: self._connect(tensors, step=step, base=None))

    def asked(self, number: int) -> bool:
        """Return whether the server asks for what this island has since the anchor `number`."""
        while self._connection is not None and select.select([self._connection], [], [], 0)[0]:
            try:
                head, _ = self._next()
            except (OSError, MessageError):
                self._drop()  # connected again when something is delivered
                break
            if isinstance(head, Ask):
                self._asked_for = max(self._asked_for, head.number + 1)
        return self._asked_for > number

    def deliver(
        self,
        gradients: Mapping[str, np.ndarray],
        *,
        base: int,
        step: int,
        steps: int,
        tokens: float,
    ) -> tuple[int, _Tensors]:
        """Deliver what was learned since the anchor `base`; return the next one and its number.

        The island has done `steps` inner steps since then, of `step` in all.

        Raises:
            ConfigError: the server refuses it.
            RunError: the server cannot be reached, or does not answer in time.
        """
        payload = packed(gradients, self._codec)
        head = Deliver(base=base, step=step, steps=steps, tokens=tokens)
        return self._until_it_works(lambda: self._deliver(head, payload))

    def close(self) -> None:
        """Say that the island has ended."""
        if self._connection is not None:
            with suppress(OSError):  # then the server learns it from the connection
                send(self._connection, Bye(), timeout_s=_PAUSE_S)
            self._drop()

    def _deliver(self, head: Deliver, payload: bytes) -> tuple[int, _Tensors]:
        if self._connection is None:
            number, anchor = self._connect(None, step=head.step, base=head.base)
            if number < head.base:  # a server that has lost merges cannot place it
                return number, anchor
        assert self._connection is not None, "it has connected"
        send(self._connection, head, payload, timeout_s=_PAUSE_S)
        self.num_bytes += len(payload)
        return self._anchor()

    def _connect(
        self, tensors: Mapping[str, np.ndarray] | None, *, step: int, base: int | None
    ) -> tuple[int, _Tensors]:
        _, self._connection = join_and_stay(
            self._address,
            host=f"island-{self._config.island}",
            versions=self._versions,
            timeout_s=self._config.timeout_s,
            say=self._say,
        )
        keep_alive(self._connection)
        self._asked_for = 0  # of a server that has lost merges, numbers come again
        hello = Hello(
            island=self._config.island,
            islands=self._config.islands,
            step=step,
            base=base,
            batch=self._batch,
            seed=self._seed,
            codec=self._config.codec.value,
            shapes=self._shapes,
        )
        send(self._connection, hello, timeout_s=_PAUSE_S)
        head, payload = self._due(Anchor, Wanted)
        if isinstance(head, Wanted):
            if tensors is None:
                raise RunError("`quorum.server` has lost its anchor; start all islands again")
            send(self._connection, FirstAnchor(), packed(tensors), timeout_s=_PAUSE_S)
            return self._anchor()
        assert isinstance(head, Anchor), head
        return head.number, unpacked(payload, self._shapes)

    def _anchor(self) -> tuple[int, _Tensors]:
        head, payload = self._due(Anchor)
        assert isinstance(head, Anchor), head
        return head.number, unpacked(payload, self._shapes)

    def _due(self, *kinds: type) -> tuple[Head, bytes]:
        """Return the next message of some kinds; an `Ask` before it is too late to matter."""
        while True:
            head, payload = self._next()
            if isinstance(head, Refused):
                raise ConfigError(f"`quorum.server` refuses this island: {head.text}")
            if isinstance(head, kinds):
                return head, payload
            if not isinstance(head, Ask):
                raise MessageError(f"the merge server answers with {type(head).__name__}")

    def _next(self) -> tuple[Head, bytes]:
        assert self._connection is not None, "it has connected"
        return receive(
            self._connection,
            most_bytes=payload_bytes(self._shapes),
            timeout_s=self._config.timeout_s,
            idle_s=_PAUSE_S,
        )

    def _until_it_works(self, work: Callable[[], tuple[int, _Tensors]]) -> tuple[int, _Tensors]:
        until_s = time.monotonic() + self._config.timeout_s
        while True:
            try:
                return work()
            except (OSError, MessageError, RunError) as error:
                self._drop()
                if time.monotonic() + _AGAIN_S > until_s:
                    shown = where(self._address.host, self._address.port)
                    raise RunError(
                        f"`quorum.server` at {shown} does not answer within `quorum.timeout_s` "
                        f"({self._config.timeout_s:g}): {error}; start it again, and resume with "
                        "--resume"
                    ) from error
                time.sleep(_AGAIN_S)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
