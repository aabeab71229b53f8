"""The error of a checkpoint that is not what was saved."""

from pathlib import Path

from jaxpipe.errors import CheckpointError


def corrupt(path: Path, problem: str) -> CheckpointError:
    """Return the error that says what is wrong with a file."""
    return CheckpointError(
        f"`checkpoint` must be intact; {path} is not: {problem}; resume from an older step or from"
        " a copy, and see that all hosts share the folder"
    )
