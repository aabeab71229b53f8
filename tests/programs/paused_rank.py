"""Hooks of a rank 1 that pauses for good once its first checkpoint is committed on its disk."""

import time
from pathlib import Path

from jaxpipe.config import load_config
from jaxpipe.runtime.checkpoint.folders import committed_folders
from jaxpipe.runtime.hooks import NO_HOOKS, Hooks
from jaxpipe.schedule import Instruction

_POLL_S, _LONGEST_S = 0.05, 120.0


class _Pauses(Hooks):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def before_instruction(self, instruction: Instruction) -> None:  # noqa: ARG002
        """Pause, if there is a checkpoint."""
        if committed_folders(self._folder):
            (self._folder / "paused").touch()
            time.sleep(_LONGEST_S)


def paused(config: Path, *, rank: int) -> Hooks:
    """Return the hooks of a rank."""
    return _Pauses(Path(load_config(config).run.folder)) if rank == 1 else NO_HOOKS
