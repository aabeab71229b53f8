"""The versions of JAX that the tests have run on, and a warning on any other.

The parameters of JAX's equations and the text of compiled HLO are no public API. A newer JAX may
have changed either, and then `jaxpipe.jaxpr` or `jaxpipe.baselines.autoshard` fails with an error
or, worse, finds other strategies. `docs/guide/versions.md` says what differs between the versions.
"""

import logging
import re
from typing import Final

import jax

_OLDEST: Final = (0, 10, 2)
_NEWEST: Final = (0, 12)

TESTED: Final = "jax {}.{}.{} to {}.{}".format(*_OLDEST, *_NEWEST)
"""The range in words; that of `pyproject.toml` is the same."""

_logger = logging.getLogger(__name__)


def is_tested(version: str) -> bool:
    """Return whether a version of JAX is in the range; its newest minor version counts whole.

    >>> is_tested("0.12.0.1"), is_tested("0.13.0"), is_tested("0.10.1")
    (True, False, False)
    """
    numbers = tuple(map(int, re.findall(r"\d+", version)[:3]))
    return numbers >= _OLDEST and numbers[:2] <= _NEWEST


def warn_if_untested() -> None:
    """Log a warning if the tests have not run on the version of JAX that is imported."""
    if not is_tested(jax.__version__):
        _logger.warning(
            "jaxpipe is tested with %s, and this is jax %s: if anything fails, install one of "
            "those versions",
            TESTED,
            jax.__version__,
        )
