"""The error tree: mistakes of the user, and failures of a run.

::

    JaxpipeError                 every error that jaxpipe raises deliberately
    ├── UserError                the input is wrong; one line with rule, field, value and fix
    │   ├── ConfigError          a field of the configuration or the command line
    │   ├── PlanError            a partition, placement or schedule that cannot run
    │   ├── DataError            a token file that is missing, corrupt or too short
    │   └── CheckpointError      a checkpoint that is missing, corrupt or of another model
    └── RunError                 the input is right, the run failed
        ├── DeadlineError        a wait exceeded its timeout
        └── TransportError       a message could not be moved
            └── RankLostError    because a rank is lost; the others may continue

A `UserError` ends a command with its message on one line and exit code 2, before any rank computes.
A `RunError` ends the whole job with exit code 1. `topo`, `models` and
`foreign_file` stand below this module and raise `ValueError`, which readers and `jaxpipe.config`
translate: they name the file or the field.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

logger = logging.getLogger(__name__)


class JaxpipeError(Exception):
    """Any error that jaxpipe raises deliberately."""


class UserError(JaxpipeError):
    """The input is wrong: the message names the rule, the field, the value and the fix."""


class ConfigError(UserError):
    """A field of the configuration or of the command line is wrong."""


class PlanError(UserError):
    """A partition of layers, a placement or a schedule cannot run."""


class DataError(UserError):
    """A token file is missing, corrupt or too short."""


class CheckpointError(UserError):
    """A checkpoint is missing, corrupt, or of another model."""


class RunError(JaxpipeError):
    """The input is right, but the run failed."""


class DeadlineError(RunError):
    """A wait exceeded its timeout; the message names what was waited for."""


class TransportError(RunError):
    """A message could not be moved between ranks."""


class RankLostError(TransportError):
    """A message could not be moved because a rank is lost; the others may continue."""


@contextmanager
def optional_output(name: str, path: Path | None = None) -> Iterator[None]:
    """Turn a failure to write what is beside a result into a warning, and remove its file.

    Pictures, traces and samples are not what a run is for: a full disk or a missing package must
    not fail one whose last checkpoint is saved, and neither may a mistake in what draws them.
    """
    try:
        yield
    except Exception as error:
        kind = "" if isinstance(error, OSError | UserError) else f"{type(error).__name__}: "
        logger.warning("%s was not written: %s%s", name, kind, error)
        if path is not None:
            with suppress(OSError):  # part of it may be there: the disk was full
                path.unlink(missing_ok=True)


_SHOWN = frozenset("\n\t\u00a0\u200c\u200d\u202f\u3000")
"""What terminals only lay out, and `str.isprintable` excludes: breaks, blanks and joiners."""


def printable(text: str) -> str:
    r"""Return text that a terminal shows and does not obey: escapes as their code.

    Names and values may come from files of strangers. All that jaxpipe prints passes here.

    >>> printable("loss\t1.5\n\x1b[2J\u202e")
    'loss\t1.5\n\\x1b[2J\\u202e'
    """
    if text.isprintable():
        return text
    shown = (
        character if character.isprintable() or character in _SHOWN else repr(character)[1:-1]
        for character in text
    )
    return "".join(shown)


_OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
_NEEDS_LESS = (
    ' lower `plan.microbatch`, raise `plan.stages`, or set `train.remat` to "full"; '
    "`jaxpipe show` estimates what a rank needs"
)


def one_line(rank: int, error: BaseException) -> str:
    r"""Return the rank, the kind of error and its message, on one line.

    >>> one_line(3, ValueError("stage 1 is\n  too big"))
    'rank 3: ValueError: stage 1 is too big'

    XLA's error for a lack of memory does not say what to do.
    """
    message = printable(" ".join(str(error).split()))
    if _OUT_OF_MEMORY in message:
        message += _NEEDS_LESS
    kind = type(error).__name__
    return f"rank {rank}: {kind}: {message}" if message else f"rank {rank}: {kind}"
