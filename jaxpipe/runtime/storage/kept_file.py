"""Values kept between runs in the caches of a user: a JSON file each, named by a hash of its key.

::

    ~/.cache/jaxpipe/measured/<kind>-<hash of the key>.json

    {"key": {"processor": ..., "jax": ...}, "checksum": "...", "value": {...}}

The key is everything that the value depends on. A file that is damaged, written by somebody else,
or of another key counts as none: the value is computed again. Needs no jax.
"""

import hashlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from jaxpipe.foreign_file import parse_json, read_json
from jaxpipe.runtime.process.user_cache import check_private, user_cache
from jaxpipe.runtime.storage.atomic_write import write_durably

logger = logging.getLogger(__name__)

T = TypeVar("T")
_MOST_BYTES = 2**24


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFile:
    """Where a value of a `kind` is kept that depends on the `key`; `key` is plain data.

    `folder` is that in the user's caches, `suffix` the end of the file's name.
    """

    kind: str
    key: Mapping[str, Any]
    environment: Mapping[str, str]
    folder: str = "measured"
    suffix: str = ".json"

    @property
    def path(self) -> Path:
        """The path of the file.

        Raises:
            RuntimeError: the user has no home.
        """
        name = hashlib.sha256(_encoded(self.key)).hexdigest()[:24]
        return user_cache(self.environment) / self.folder / f"{self.kind}-{name}{self.suffix}"

    def read(self, kind: type[T]) -> T | None:
        """Return the value, or None where there is none, or none that can be trusted."""
        try:
            path = self.path
            check_private(path.parent)
            content = read_json(path, _Content, most_bytes=_MOST_BYTES)
            is_whole = hashlib.sha256(content.value).hexdigest() == content.checksum
            if not is_whole or _encoded(content.key) != _encoded(self.key):
                logger.info("%s is damaged, or of another key: it counts as none", path)
                return None
            return parse_json(bytes(content.value), kind)
        except (OSError, ValueError, RuntimeError) as error:  # pathlib's, without a home
            logger.debug("nothing is kept of %s: %s", self.kind, error)
            return None

    def write(self, value: Any) -> None:
        """Keep the value; where the folder cannot be written, it is computed again next time."""
        encoded = _encoded(value)
        content = _Content(
            key=dict(self.key),
            checksum=hashlib.sha256(encoded).hexdigest(),
            value=msgspec.Raw(encoded),
        )
        try:
            folder = self.path.parent
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            check_private(folder)
            # Two processes may measure the same at once: each writes a file of its own.
            temporary = folder / f"{self.path.name}.{os.getpid()}"
            write_durably(temporary, msgspec.json.encode(content))
            temporary.replace(self.path)
        except (OSError, RuntimeError) as error:
            logger.warning("the %s is not kept: %s", self.kind, error)


class _Content(msgspec.Struct, kw_only=True):
    key: dict[str, Any]
    checksum: str
    value: msgspec.Raw


def _encoded(value: Any) -> bytes:
    return msgspec.json.encode(value, order="deterministic")
