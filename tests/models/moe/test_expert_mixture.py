"""A layer with experts against NumPy, and its two ways of dispatch against each other."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import Array

from jaxpipe.models.moe.expert_mixture import ExpertMixture
from jaxpipe.models.moe.router import load_balance_loss, route, z_loss
from jaxpipe.models.moe.routing import Dispatch, Routing
from tests.oracles import numpy_moe

BATCH, SEQ, DIM, HIDDEN = 3, 12, 6, 8
SWITCH = Routing(experts=4)
SGMOE = Routing(experts=4, experts_per_token=2, capacity_factor=2.5)
GSHARD = replace(SGMOE, normalised_gates=True)
TIGHT = replace(GSHARD, capacity_factor=0.5)
THREE = Routing(experts=5, experts_per_token=3, capacity_factor=2.0)
ONE = Routing(experts=1)
ROUTINGS = {
    "switch": SWITCH,
    "sgmoe": SGMOE,
    "gshard": GSHARD,
    "tight": TIGHT,
    "three": THREE,
    "one": ONE,
}


def layer(routing: Routing, dtype: str = "float32") -> ExpertMixture:
    return ExpertMixture(
        routing, dim=DIM, hidden=HIDDEN, dtype=dtype, stds=(1.0, 1.0), rngs=nnx.Rngs(1)
    )


def inputs(dtype: str = "float32") -> Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=(BATCH, SEQ, DIM)), dtype)


def in_numpy(routing: Routing) -> numpy_moe.Mixed:
    params = {
        name: np.asarray(getattr(layer(routing), name)[...], np.float64)
        for name in ("router", "up", "down")
    }
    return numpy_moe.mixture(np.asarray(inputs(), np.float64), params, routing)


@pytest.mark.parametrize("dispatch", Dispatch)
@pytest.mark.parametrize("name", ROUTINGS)
def test_outputs_are_those_of_numpy(name: str, dispatch: Dispatch) -> None:
    routing = replace(ROUTINGS[name], dispatch=dispatch)
    y, loss = layer(routing)(inputs())
    assert loss is None
    np.testing.assert_allclose(y, in_numpy(routing).y, rtol=1e-4, atol=1e-5)


def test_tight_capacity_drops_choices_and_ragged_drops_none() -> None:
    assert in_numpy(TIGHT).dropped > BATCH * SEQ / 2
    assert in_numpy(replace(TIGHT, dispatch=Dispatch.RAGGED)).dropped == 0


@pytest.mark.parametrize("name", ROUTINGS)
def test_losses_are_those_of_numpy(name: str) -> None:
    routing = ROUTINGS[name]
    mixture, expected = layer(routing), in_numpy(routing)
    routed = route(inputs(), mixture.router[...], routing)
    assert float(load_balance_loss(routed)) == pytest.approx(expected.balance, rel=1e-5)
    assert float(z_loss(routed)) == pytest.approx(expected.z, rel=1e-5)
    weighted = replace(routing, balance_loss=0.01, z_loss=0.001)
    _, loss = layer(weighted)(inputs())
    assert loss is not None
    assert float(loss) == pytest.approx(0.01 * expected.balance + 0.001 * expected.z, rel=1e-5)


@pytest.mark.slow
def test_gradients_of_both_dispatches_are_equal_without_drops() -> None:
    routing = replace(GSHARD, capacity_factor=100.0, balance_loss=0.1, z_loss=0.1)

    @partial(jax.jit, static_argnums=0)
    def gradients(dispatch: Dispatch, x: Array) -> tuple[nnx.State, Array]:
        graph, state = nnx.split(layer(replace(routing, dispatch=dispatch)))

        def total(state: nnx.State, x: Array) -> Array:
            y, loss = nnx.merge(graph, state)(x)
            assert loss is not None
            return jnp.sin(y).sum() + loss

        return jax.grad(total, argnums=(0, 1))(state, x)

    einsum, ragged = (jax.tree.leaves(gradients(each, inputs())) for each in Dispatch)
    assert len(einsum) == 4
    for one, other in zip(einsum, ragged, strict=True):
        assert float(jnp.abs(one).max()) > 1e-3
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_sequence_is_routed_by_itself() -> None:
    mixture, x = layer(TIGHT), inputs()
    alone = jnp.concatenate([mixture(x[i : i + 1])[0] for i in range(BATCH)])
    np.testing.assert_allclose(mixture(x)[0], alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("groups", [1, 3])
def test_a_group_is_routed_like_one_long_sequence(groups: int) -> None:
    routing = replace(TIGHT, groups=groups)
    x = inputs()
    joined = x.reshape(groups, -1, DIM)
    expected = layer(TIGHT)(joined)[0].reshape(x.shape)
    np.testing.assert_array_equal(layer(routing)(x)[0], expected)


def test_groups_divide_the_batch() -> None:
    with pytest.raises(ValueError, match="`routing_groups` must divide the batch: 2 groups of 3"):
        layer(replace(SWITCH, groups=2))(inputs())


def test_the_router_computes_in_float32() -> None:
    mixture, x = layer(SWITCH, "bfloat16"), inputs("bfloat16")
    routed = route(x, mixture.router[...], SWITCH)
    assert {each.dtype for each in (routed.logits, routed.gates)} == {jnp.dtype("float32")}
    exact = np.asarray(x, np.float64) @ np.asarray(mixture.router[...], np.float64)
    np.testing.assert_allclose(routed.logits, exact, rtol=1e-4, atol=1e-5)
    assert mixture(x)[0].dtype == jnp.bfloat16
