"""Hooks that a rank calls at named points of its work, for fault injection and for tests.

::

    compile ── read ── instruction ── instruction ── ... ── evaluate ── save: shards, manifest, ...
       └────────┴───────────┴─────────────┴───────────────────┴───────────┴──► Hooks

They observe and may delay or end the process; they change nothing that is computed.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

import numpy as np

from jaxpipe.plan import Plan
from jaxpipe.schedule import Instruction
from jaxpipe.trace import PairUse


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPairs:
    """What all pairs of ranks have sent in some steps, as rank 0 measured it.

    The steps from `first_step` to `last_step` count from 1.
    """

    first_step: int
    last_step: int
    pairs: tuple[PairUse, ...]


class SavePhase(Enum):
    """What a save is about to do, in this order; rank 0 alone comes by all but the first.

    Where hosts share no folder, the first rank of each disk comes by the last three.
    """

    SHARDS = "shards"
    """A save has begun, and this rank has not written its shards."""
    MANIFEST = "manifest"
    """All shards are written, and no manifest."""
    RENAME = "rename"
    """The manifest is written, and the checkpoint not committed."""
    PRUNE = "prune"
    """Committed, and older checkpoints not yet removed."""
    REMOVE = "remove"
    """An older checkpoint has lost its manifest, and not its shards."""


@runtime_checkable
class Hooks(Protocol):
    """What a rank calls, in the thread that trains but for `before_save_phase`.

    Derive from it to implement some of them: the others do nothing.
    """

    def before_compile(self, *, done: int, total: int) -> None:
        """Called before the rank waits for its next executable, when it has `done` of `total`."""

    def after_compile(self) -> None:
        """Called when the rank has compiled its stages, before it waits for the other ranks."""

    def after_read(self, plan: Plan, tokens: np.ndarray | None, *, rank: int, step: int) -> None:
        """Called with the samples of a training step, None on ranks that need no tokens.

        `tokens` are of shape (microbatches, microbatch, tokens); steps count from 0.
        """

    def before_instruction(self, instruction: Instruction) -> None:
        """Called before each instruction of a training or evaluation step."""

    def before_evaluation(self) -> None:
        """Called before the held-out loss is computed."""

    def before_last_save(self) -> None:
        """Called when training has ended, and waits until its last checkpoint is saved."""

    def before_save_phase(self, phase: SavePhase) -> None:
        """Called before a save's next phase, in the thread that saves."""

    def after_links(self, measured: MeasuredPairs) -> None:
        """Called on rank 0 with what ranks have sent to each other since the last report."""


class NoHooks(Hooks):
    """Hooks that do nothing: a call takes about 50 ns, an instruction at least some 10 us."""


NO_HOOKS: Hooks = NoHooks()
