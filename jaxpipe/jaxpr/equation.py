"""Read the parameters of JAX's equations, whose names differ between versions of JAX.

==============  ===========================  ==========================
equation        jax 0.10                     jax 0.11, 0.12
==============  ===========================  ==========================
``scan``        `num_consts`, `num_carry`    `ft_in`: a tree of three
inner jaxprs    `Jaxpr` or `ClosedJaxpr`     `Jaxpr`, with its constants
==============  ===========================  ==========================

Every look-up of a parameter of a call, a scan or a rematerialization is in this file, so that a
new version of JAX changes this file alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from jaxpipe.errors import ConfigError
from jaxpipe.jaxpr.tested_jax import TESTED

_REMAT: Final = frozenset(("checkpoint", "remat", "remat2"))

# By name and not by "has a jaxpr": a Pallas kernel or a `shard_map` has one too, and computes
# something else when it is inlined.
_CALLS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("jit", "pjit", *_REMAT), "jaxpr"),
        **dict.fromkeys(
            (
                "closed_call",
                "core_call",
                "custom_jvp_call",
                "custom_vjp_call",
                "eval_jaxpr",
                "remat_call",
            ),
            "call_jaxpr",
        ),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanParameters:
    """The parameters of a scan: its operands are constants, then carries, then what is sliced."""

    body: ClosedJaxpr
    num_consts: int
    num_carry: int
    length: int
    reverse: bool
    unroll: int


def called(equation: JaxprEqn) -> ClosedJaxpr | None:
    """Return the jaxpr that a call applies to its operands; None where the equation is no call.

    Calls are functions under `jit`, with custom derivatives and under `jax.checkpoint`.
    """
    key = _CALLS.get(equation.primitive.name)
    return None if key is None else _closed(_parameter(equation, key))


def scan_of(equation: JaxprEqn) -> ScanParameters | None:
    """Return the parameters of a scan; None for any other equation.

    >>> import jax.numpy as jnp
    >>> sums = lambda x: jax.lax.scan(lambda c, each: (c + each, c), 0.0, x)
    >>> (equation,) = jax.make_jaxpr(sums)(jnp.ones(3)).eqns
    >>> scan = scan_of(equation)
    >>> scan.num_consts, scan.num_carry, scan.length
    (0, 1, 3)
    """
    if equation.primitive.name != "scan":
        return None
    num_consts, num_carry = _scan_sizes(equation)
    return ScanParameters(
        body=_closed(_parameter(equation, "jaxpr")),
        num_consts=num_consts,
        num_carry=num_carry,
        length=_parameter(equation, "length"),
        reverse=_parameter(equation, "reverse"),
        unroll=_parameter(equation, "unroll"),
    )


def is_remat(equation: JaxprEqn) -> bool:
    """Whether an equation is a function under `jax.checkpoint`."""
    return equation.primitive.name in _REMAT


def recomputes(equation: JaxprEqn) -> bool:
    """Whether an equation recomputes, in a backward, what must not be merged with the forward."""
    if not is_remat(equation):
        return False
    return bool(_parameter(equation, "prevent_cse") and _parameter(equation, "differentiated"))


def _scan_sizes(equation: JaxprEqn) -> tuple[int, int]:
    """Return the number of constants and of carries."""
    if "num_consts" in equation.params:
        return _parameter(equation, "num_consts"), _parameter(equation, "num_carry")
    consts, carry, _ = _parameter(equation, "ft_in").unpack()
    return len(consts), len(carry)


def _closed(jaxpr: Any) -> ClosedJaxpr:
    assert isinstance(jaxpr, Jaxpr | ClosedJaxpr), type(jaxpr)
    return jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ())


def _parameter(equation: JaxprEqn, name: str) -> Any:
    if name not in equation.params:
        raise ConfigError(
            f"`{equation.primitive.name}` of jax {jax.__version__} has no parameter `{name}`, only "
            f"{', '.join(equation.params)}: jaxpipe reads the equations of {TESTED}; install one "
            "of those versions"
        )
    return equation.params[name]
