"""Lower large products on the CPU, in float32 or bfloat16, to the custom call of a BLAS.

jax lowers each equation by a rule. The one of `dot_general` for the CPU is replaced here, in the
whole process; what is no large product of two matrices is lowered by the former rule. Programs of
several devices are, too: XLA partitions its own products, and no custom calls.
"""

import logging
import os
from collections.abc import Callable, Mapping
from functools import cache, partial
from threading import Lock
from typing import Any, Final, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir
from jaxtyping import Array

from jaxpipe.attention_calls import AttentionCalls
from jaxpipe.runtime.blas.chosen_products import Products, by_xla, chosen_products
from jaxpipe.runtime.blas.custom_calls import load_mkl, register_attention, register_gemm
from jaxpipe.runtime.blas.matrix_product import MatrixProduct, matrix_product
from jaxpipe.runtime.process.user_cache import user_cache

logger = logging.getLogger(__name__)

LEAST_MULTIPLICATIONS: Final = 2**18
"""Those of a product that a BLAS computes; smaller ones XLA may fuse with what surrounds them."""

FORMATS: Final = (np.dtype(np.float32), jnp.dtype(jnp.bfloat16))
"""The formats of factors that a BLAS multiplies; its sums are of float32."""

_IN_TURN = Lock()  # ranks may be threads of a process, and compile at the same time

_Names = TypeVar("_Names")

Rule = Callable[..., Any]
"""A lowering rule of jax: of its context, the operands and the parameters of an equation."""


def use_products(environment: Mapping[str, str]) -> Products:
    """Lower large products on the CPU as `chosen_products` says, from now on in this process.

    Returns who computes them: XLA with a reason where the BLAS cannot be loaded, which is logged.
    What was compiled before stays as it is. XLA keeps all products of a jax that has its rules in
    another place.

    Raises:
        ConfigError: the variable of the switch has another value.
    """
    products, rule = chosen_products(environment), former_rule()
    if rule is None:
        return by_xla("the rules of this jax are unknown")
    if products.library is not None:
        try:
            with _IN_TURN:
                rule = gemm_rule(registered(products), rule)
        except (OSError, RuntimeError) as error:  # the latter without a home, and of XLA
            name = products.name
            logger.warning("XLA computes all products of matrices, not %s: %s", name, error)
            products = by_xla(str(error))
    lower_products(rule)
    return products


def lower_products(rule: Rule) -> None:
    """Lower `dot_general` on the CPU by a rule; without a BLAS, jax's own one is left alone."""
    if _rule() is not rule:
        mlir.register_lowering(jax.lax.dot_general_p, rule, platform="cpu")


def gemm_rule(name: str, former: Rule, *, least: int = LEAST_MULTIPLICATIONS) -> Rule:
    """Return the rule that lowers products to the custom call `name`, others by the `former`.

    Products have at least `least` multiplications.
    """

    def lower(context: mlir.LoweringRuleContext, left: Any, right: Any, **params: Any) -> Any:
        product = _product(context, params)
        if product is None or product.num_multiplications < least:
            return former(context, left, right, **params)
        (result,) = context.avals_out
        like = jax.ShapeDtypeStruct(result.shape, result.dtype)
        function = partial(_multiply, name, product, like)
        return mlir.lower_fun(function, multiple_results=False)(context, left, right)

    return lower


def call_names(products: Products) -> tuple[str, ...]:
    """Return the names of the custom calls that a stage may have, as they are registered."""
    if products.library is None:
        return ()
    attention = use_attention(products)
    return (registered(products), *(() if attention is None else attention))


@cache
def registered(products: Products) -> str:
    """Register the call, once in a process: XLA takes no other one of the same name."""
    return _registered(register_gemm, products)


def use_attention(products: Products) -> AttentionCalls | None:
    """Return the calls of attention of the BLAS that computes products; None if XLA does.

    Where they cannot be compiled, which is logged, attention is products of XLA.
    """
    if products.library is None:
        return None
    try:
        with _IN_TURN:
            return registered_attention(products)
    except (OSError, RuntimeError) as error:
        logger.warning("XLA computes attention, not %s: %s", products.name, error)
        return None


@cache
def registered_attention(products: Products) -> AttentionCalls:
    """Register the calls of attention, once in a process."""
    return _registered(register_attention, products)


def _registered(register: Callable[..., _Names], products: Products) -> _Names:
    assert products.library is not None, products
    blas = load_mkl(products.library)
    return register(blas, products.compiler, folder=user_cache(os.environ) / "calls")


@cache
def former_rule() -> Rule | None:
    """Return jax's own rule, None if this version keeps it elsewhere."""
    return _rule()


def _rule() -> Rule | None:
    # The API has no way to it.
    try:
        from jax._src.interpreters import mlir as rules_of_jax

        return vars(rules_of_jax)["_platform_specific_lowerings"]["cpu"][jax.lax.dot_general_p].rule
    except (ImportError, AttributeError, LookupError):
        return None


def _product(context: mlir.LoweringRuleContext, params: Mapping[str, Any]) -> MatrixProduct | None:
    """Return the product of an equation; None if the custom call does not compute it."""
    avals: tuple[Any, ...] = (*context.avals_in, *context.avals_out)
    left, right, result = avals
    if left.dtype != right.dtype or left.dtype not in FORMATS:
        return None
    if result.dtype not in (left.dtype, np.float32):
        return None
    # Of jit on one device; other contexts, as that of shard_map, have another type.
    if getattr(context.module_context.axis_context, "num_devices", None) != 1:
        return None
    # On the CPU, all precisions mean the format; what is neither None nor a pair is an algorithm.
    if not isinstance(params["precision"], tuple | None):
        return None
    return matrix_product(left.shape, right.shape, params["dimension_numbers"])


def _multiply(
    name: str, product: MatrixProduct, like: jax.ShapeDtypeStruct, left: Array, right: Array
) -> Array:
    multiply = jax.ffi.ffi_call(name, jax.ShapeDtypeStruct((product.m, product.n), jnp.float32))
    result = multiply(
        left.reshape(product.left_shape),
        right.reshape(product.right_shape),
        left_is_transposed=np.bool_(product.left_is_transposed),
        right_is_transposed=np.bool_(product.right_is_transposed),
    )
    return result.reshape(like.shape).astype(like.dtype)
