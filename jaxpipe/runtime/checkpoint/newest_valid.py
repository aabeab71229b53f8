"""The newest checkpoint that is intact, and a warning about each newer one that is not."""

import logging
from pathlib import Path

from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint.checkpoint import Checkpoint, open_checkpoint, verify
from jaxpipe.runtime.checkpoint.folders import newest_first, step_of
from jaxpipe.runtime.checkpoint.manifest import corrupt

_log = logging.getLogger(__name__)


def newest_valid(run_folder: Path) -> Checkpoint:
    """Return the checkpoint of the highest step that is intact; one rank calls it.

    Every byte is read, and a folder must contain the step of its name. A warning names each newer
    checkpoint that is broken, and why; its folder stays until the run repeats its step.

    Raises:
        CheckpointError: there is none, or all are broken.
    """
    broken: list[CheckpointError] = []  # newer than the one that is returned
    for folder in newest_first(run_folder):
        try:
            checkpoint = open_checkpoint(folder)
            _check_step(checkpoint)  # costs nothing; `verify` reads all
            verify(checkpoint)
        except CheckpointError as error:
            _log.warning("the checkpoint %s is broken, trying an older one: %s", folder, error)
            broken.append(error)
            continue
        if broken:
            _log.warning("the run resumes from step %d, in %s", checkpoint.step, folder)
        return checkpoint
    if broken:
        raise CheckpointError(
            f"`resume` must name a run with an intact checkpoint; all {len(broken)} of {run_folder}"
            f" are broken, the newest because: {broken[0]}"
        )
    raise CheckpointError(
        f"`resume` must name a run with a checkpoint; {run_folder} has none; start the run"
        " without `resume`, or name another folder"
    )


def _check_step(checkpoint: Checkpoint) -> None:
    if checkpoint.step != step_of(checkpoint.folder):
        raise corrupt(checkpoint.folder, f"it contains the checkpoint of step {checkpoint.step}")
