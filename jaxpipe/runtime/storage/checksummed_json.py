"""JSON that carries a checksum of its own content, so that no flipped bit passes for a value.

::

    {"checksum": "9f..", "format": 1, "step": 100, ...}
                         └──── the checksum is of this, with sorted keys and without blanks

A flip that leaves every value as it was, as the case of a digit in an escaped letter, is found too:
the text has to be, byte by byte, what `seal` writes.
"""

import json
from collections.abc import Mapping
from typing import Any

from jaxpipe.runtime.storage.checksum import checksum_bytes


def seal(content: Mapping[str, Any], *, version: int) -> bytes:
    """Return indented JSON with the format version and the checksum.

    Raises:
        ValueError: a number is not finite, which JSON cannot say.
        TypeError: a value is not of JSON.

    >>> unseal(seal({"step": 3}, version=1), version=1)
    {'step': 3}
    """
    body = {"format": version, **content}
    return _text({"checksum": _checksum(body), **body})


def unseal(data: bytes, *, version: int) -> dict[str, Any]:
    """Return the content without format version and checksum.

    Raises:
        ValueError: not JSON, of another version, or changed since it was sealed; says which.

    >>> unseal(seal({"step": 3}, version=1).replace(b"3", b"7"), version=1)
    Traceback (most recent call last):
    ValueError: its content does not match its checksum
    """
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON ({error})") from None
    if not isinstance(body, dict) or "format" not in body:
        raise ValueError("it has no `format`")
    if body["format"] != version:
        raise ValueError(f"`format` must be {version}, not {body['format']!r}")
    expected = body.pop("checksum", None)
    if _checksum(body) != expected:
        raise ValueError("its content does not match its checksum")
    if _text({"checksum": expected, **body}) != data:
        raise ValueError("its text is not what was sealed")
    del body["format"]
    return body


def _text(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, indent=1).encode()


def _checksum(body: Mapping[str, Any]) -> str:
    canonical = json.dumps(body, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return checksum_bytes(canonical.encode())
