"""Words that a manifest holds: checked, and in quotes where YAML would read something else."""

import re

from jaxpipe.errors import ConfigError

_IMAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/:@-]{0,510}[A-Za-z0-9_])?")
_NO_STRINGS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
"""Words that YAML 1.1 reads as something else than a string."""


def check_image(image: str) -> None:
    """Check the name of a container image.

    Raises:
        ConfigError: it is none.
    """
    if not _IMAGE.fullmatch(image):
        raise ConfigError(
            "`--image` must be the name of a container image, such as registry.example/jaxpipe:1, "
            f"not {image!r:.80}"
        )


def scalar(name: str) -> str:
    """Return the YAML of a name: in quotes where it would be read as a number, a date or a truth.

    >>> scalar("jaxpipe:1"), scalar("on"), scalar("1.5")
    ('jaxpipe:1', '"on"', '"1.5"')
    """
    is_plain = name[0].isalpha() and name.lower() not in _NO_STRINGS
    return name if is_plain else f'"{name}"'
