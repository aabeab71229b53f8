"""The permutation is one, for every size and key, and differs from key to key."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.runtime.data.order.permutation import mix, permute

KEYS = st.integers(0, 2**64 - 1)


def whole(size: int, key: int) -> np.ndarray:
    return permute(np.arange(size), size=size, keys=np.full(size, key, np.uint64))


@given(size=st.integers(1, 3000), key=KEYS)
def test_every_index_is_the_image_of_exactly_one(size: int, key: int) -> None:
    np.testing.assert_array_equal(np.sort(whole(size, key)), np.arange(size))


@pytest.mark.parametrize("size", [1, 2, 4, 5, 16, 17, 64, 65, 1024, 1025])
def test_sizes_around_powers_of_four(size: int) -> None:
    np.testing.assert_array_equal(np.sort(whole(size, 3)), np.arange(size))


@given(size=st.integers(1, 2**62), key=KEYS, index=st.integers(0, 2**62 - 1))
def test_large_sizes_stay_within_bounds(size: int, key: int, index: int) -> None:
    image = permute(np.array([index % size]), size=size, keys=np.array([key], np.uint64))
    assert 0 <= image[0] < size


def test_each_index_follows_its_own_key_alone() -> None:
    keys = np.array([1, 2, 1, 3], np.uint64)
    indices = np.array([4, 4, 4, 9])
    together = permute(indices, size=10, keys=keys)
    apart = [permute(indices[i : i + 1], size=10, keys=keys[i : i + 1])[0] for i in range(4)]
    assert together.tolist() == apart
    assert together[0] == together[2]


def test_images_are_uniform_over_keys() -> None:
    """Chi-squared of where 7 indices of 7 go, 7,000 keys: 36 degrees of freedom, p = 1e-4 at 78."""
    keys = mix(np.arange(7000, dtype=np.uint64))
    counts = np.zeros((7, 7))
    for index in range(7):
        images = permute(np.full(7000, index), size=7, keys=keys)
        counts[index] = np.bincount(images, minlength=7)
    assert ((counts - 1000) ** 2 / 1000).sum() < 78


def test_neighbours_do_not_stay_neighbours() -> None:
    images = whole(10_000, 5)
    assert np.count_nonzero(np.abs(np.diff(images)) == 1) < 20
