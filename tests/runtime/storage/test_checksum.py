"""Sealed JSON is read back as it was written, or refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.runtime.storage.checksum import seal, unseal

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.text().filter(lambda key: key not in ("checksum", "format"))


@given(content=st.dictionaries(KEYS, VALUES, max_size=4))
def test_unseal_inverts_seal(content: dict) -> None:
    assert unseal(seal(content, version=3), version=3) == content


def test_every_flipped_bit_is_found() -> None:
    content = {"step": 100, "ok": True, "rate": [1e-5, 0.5e7], "name": "né", "none": None}
    sealed = seal(content, version=1)
    for position, bit in np.ndindex(len(sealed), 8):
        flipped = bytearray(sealed)
        flipped[position] ^= 1 << bit
        with pytest.raises(
            ValueError, match=r"cannot parse as JSON|format`|not match|not the text"
        ):
            unseal(bytes(flipped), version=1)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"3", b"{}", b'{"checksum": ""}', b"\xff", b"[" * 9999]
)
def test_what_was_never_sealed(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"cannot parse as JSON|`format` is missing"):
        unseal(data, version=1)


def test_another_version_is_named() -> None:
    with pytest.raises(ValueError, match="`format` must be 1, not 2"):
        unseal(seal({}, version=2), version=1)


def test_numbers_that_json_cannot_say() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        seal({"loss": float("nan")}, version=1)
