"""What is one product of matrices is found, with its shapes; everything else is none."""

import pytest

from jaxpipe.runtime.blas.matrix_product import DotDims, matrix_product

NO_BATCH = ((), ())


@pytest.mark.parametrize(
    ("left", "right", "summed", "transposed"),
    [
        ((4, 8), (8, 3), ((1,), (0,)), (False, False)),
        ((8, 4), (8, 3), ((0,), (0,)), (True, False)),
        ((4, 8), (3, 8), ((1,), (1,)), (False, True)),
        ((8, 4), (3, 8), ((0,), (1,)), (True, True)),
        ((2, 5, 8), (8, 6, 7), ((2,), (0,)), (False, False)),
        ((2, 5, 8), (2, 5, 6), ((0, 1), (0, 1)), (True, False)),
        ((2, 5, 8), (2, 5, 6), ((1, 0), (1, 0)), (True, False)),
        ((1, 8, 4), (8, 3), ((1,), (0,)), (True, False)),
        ((4, 1, 8, 1), (8, 1, 3), ((2, 1), (0, 1)), (False, False)),
        ((8,), (8,), ((0,), (0,)), (False, False)),
    ],
)
def test_factors_are_read_as_they_are(
    left: tuple[int, ...],
    right: tuple[int, ...],
    summed: tuple[tuple[int, ...], tuple[int, ...]],
    transposed: tuple[bool, bool],
):
    product = matrix_product(left, right, (summed, NO_BATCH))
    assert product is not None
    # A vector is both: what is summed is all that there is.
    assert product.left_is_transposed == transposed[0]
    assert product.right_is_transposed == (transposed[1] or right == (8,) == left)


@pytest.mark.parametrize(
    ("left", "right", "dims"),
    [
        pytest.param((2, 4, 8), (2, 8, 3), (((2,), (1,)), ((0,), (0,))), id="batch"),
        pytest.param((2, 8, 5), (8, 3), (((1,), (0,)), NO_BATCH), id="summed between others"),
        pytest.param((4, 2, 8), (8, 2, 3), (((1, 2), (1, 0)), NO_BATCH), id="another order"),
    ],
)
def test_other_products_are_none(left: tuple[int, ...], right: tuple[int, ...], dims: DotDims):
    assert matrix_product(left, right, dims) is None


def test_sizes_of_zero_are_sizes():
    product = matrix_product((4, 0), (0, 3), (((1,), (0,)), NO_BATCH))
    assert product is not None
    assert (product.m, product.k, product.n, product.num_multiplications) == (4, 0, 3, 0)
