"""The newest checkpoint that is intact, and a warning about each newer one that is not."""

import logging
from collections.abc import Sequence
from pathlib import Path

from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint.checkpoint import (
    Checkpoint,
    check_headers,
    open_checkpoint,
    verify,
)
from jaxpipe.runtime.checkpoint.folders import newest_first, step_of
from jaxpipe.runtime.checkpoint.manifest import corrupt
from jaxpipe.runtime.checkpoint.object_storage.object_store import committed_prefixes
from jaxpipe.runtime.storage.object_folder import Folder

_log = logging.getLogger(__name__)


def newest_valid(place: Folder, *, before: int | None = None) -> Checkpoint:
    """Return the checkpoint of the highest step that is intact; one rank calls it.

    `place` is the folder of a run, of which every byte is read, or object storage, of which only
    manifests and headers are: the ranks verify the tensors that they read. Only steps `before` one
    are looked at, if it is given.

    A folder must contain the step of its name. A warning names each newer checkpoint that is
    broken, and why; its folder stays until the run repeats its step.

    Raises:
        CheckpointError: there is none, or all are broken.
    """
    broken: list[CheckpointError] = []  # newer than the one that is returned
    for folder in _newest_first(place):
        if before is not None and step_of(folder) >= before:
            continue
        try:
            checkpoint = open_checkpoint(folder)
            _check_step(checkpoint)  # costs nothing; `verify` reads all
            (verify if isinstance(place, Path) else check_headers)(checkpoint)
        except CheckpointError as error:
            _log.warning("the checkpoint %s is broken, trying an older one: %s", folder, error)
            broken.append(error)
            continue
        if broken:
            _log.warning("the run resumes from step %d, in %s", checkpoint.step, folder)
        return checkpoint
    if broken:
        raise CheckpointError(
            f"`resume` must name a run with an intact checkpoint; all {len(broken)} of {place}"
            f" are broken, the newest because: {broken[0]}"
        )
    raise CheckpointError(
        f"`resume` must name a run with a checkpoint; {place} has none; start the run"
        " without `resume`, or name another folder"
    )


def _newest_first(place: Folder) -> Sequence[Folder]:
    if isinstance(place, Path):
        return newest_first(place)
    found = committed_prefixes(place)
    return [found[step] for step in sorted(found, reverse=True)]


def _check_step(checkpoint: Checkpoint) -> None:
    if checkpoint.step != step_of(checkpoint.folder):
        raise corrupt(checkpoint.folder, f"it contains the checkpoint of step {checkpoint.step}")
