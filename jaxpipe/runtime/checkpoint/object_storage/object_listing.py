"""The checkpoints behind a URL, found by one listing."""

import re

from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint.manifest import MANIFEST
from jaxpipe.runtime.checkpoint.object_storage.object_folder import ObjectFolder

_MANIFEST = re.compile(rf"(step-(\d{{8,}}))/{re.escape(MANIFEST)}")


def step_prefix(folder: ObjectFolder, step: int) -> ObjectFolder:
    """Return the prefix of the checkpoint of a step.

    >>> from jaxpipe.runtime.checkpoint.object_storage.object_folder import open_object_folder
    >>> str(step_prefix(open_object_folder("memory://run"), 100))
    'memory://run/step-00000100'
    """
    assert step >= 0, step
    return folder / f"step-{step:08d}"


def committed_prefixes(folder: ObjectFolder) -> dict[int, ObjectFolder]:
    """Return the prefix of each committed step, in order.

    Raises:
        CheckpointError: the store does not answer, or refuses.
    """
    try:
        found = map(_MANIFEST.fullmatch, folder.sizes())
    except OSError as error:
        raise CheckpointError(
            f"`checkpoint.folder` must answer; {folder} does not: {error.strerror}; check the "
            "credentials in the environment and the endpoint"
        ) from error
    return {int(match[2]): folder / match[1] for match in found if match is not None}
