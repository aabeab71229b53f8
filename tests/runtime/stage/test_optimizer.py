"""The optimizer of a cut model is optax on the whole one: AdamW behind a clip by global norm."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.runtime.stage.functions import StageFunctions, Work
from jaxpipe.runtime.stage.gradient_buckets import pack, unpack
from jaxpipe.runtime.stage.model import Parameters
from jaxpipe.runtime.stage.optimizer import clip_factor, learning_rate, rate_after
from jaxpipe.runtime.stage.optimizer_config import OptimizerConfig
from jaxpipe.runtime.stage.stage import Stage
from jaxpipe.schedule import Bucket
from tests.oracles.one_device import NUM_LAYERS, SEED, SEQUENCE, tiny_gpt

pytestmark = pytest.mark.slow

NUM_STEPS = 5
CONFIG = OptimizerConfig(learning_rate=1e-2, warmup_steps=2, clip_norm=0.5)


def stage_functions(*, index: int, cut: tuple[int, ...], tied: bool) -> StageFunctions:
    start = sum(cut[:index])
    return StageFunctions(
        stage=Stage(
            model=tiny_gpt(tied=tied),
            index=index,
            num_stages=len(cut),
            layers=range(start, start + cut[index]),
        ),
        work=Work(microbatch=1, sequence=SEQUENCE, batch=1, num_steps=NUM_STEPS, seed=SEED),
        optimizer=CONFIG,
    )


def reference(params: Parameters) -> optax.GradientTransformation:
    """Say in optax's own words what the stages do together."""
    decayed = jax.tree.map_with_path(
        lambda path, leaf: leaf.ndim - (path[0].key == "blocks") >= 2, params
    )
    return optax.chain(
        optax.clip_by_global_norm(CONFIG.clip_norm),
        optax.adamw(
            learning_rate(CONFIG, num_steps=NUM_STEPS),
            b1=CONFIG.beta1,
            b2=CONFIG.beta2,
            eps=CONFIG.epsilon,
            weight_decay=CONFIG.weight_decay,
            mask=decayed,
        ),
    )


@jax.jit
def draw_gradients(params: Parameters, step: int) -> Parameters:
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(step), len(leaves))
    return jax.tree.unflatten(
        structure, [jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)]
    )


def part(whole: Parameters, functions: StageFunctions) -> Parameters:
    """Return what a stage holds of a tree over the whole model."""
    held = jax.eval_shape(lambda: functions.stage.init(seed=SEED))
    layers = functions.stage.layers
    blocks = jax.tree.map(lambda leaf: leaf[layers.start : layers.stop], whole["blocks"])
    ends = {
        name: {key: whole[name][key] for key in leaves}
        for name, leaves in held.items()
        if name != "blocks"
    }
    return {**ends, "blocks": blocks}


def test_stages_together_update_as_optax_does():
    cut = (2, 3)
    stages = [stage_functions(index=i, cut=cut, tied=True) for i in range(2)]
    one = stage_functions(index=0, cut=(NUM_LAYERS,), tied=True).stage
    whole = jax.jit(lambda: one.init(seed=SEED))()
    optimizer = reference(whole)
    moments = optimizer.init(whole)
    states = [jax.jit(functions.init)() for functions in stages]
    packs = [jax.jit(lambda g, f=f: f.pack(f.stage.spread(part(g, f)))) for f in stages]
    updates = [jax.jit(f.update) for f in stages]
    expected = jax.jit(optimizer.update)
    for step in range(NUM_STEPS):
        gradients = draw_gradients(whole, step)
        buckets = [pack_(gradients) for pack_ in packs]
        square_norm = sum(f.square_norm(b) for f, b in zip(stages, buckets, strict=True))
        states = [
            update(params, moment, bucket, jnp.float32(square_norm))
            for update, (params, moment), bucket in zip(updates, states, buckets, strict=True)
        ]
        changes, moments = expected(gradients, moments, whole)
        whole = jax.tree.map(jnp.add, whole, changes)
    for functions, (params, _) in zip(stages, states, strict=True):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-7),
            params,
            part(whole, functions),
        )


@given(norm=st.floats(0.0, 1e6), clip=st.floats(1e-3, 1e3))
def test_clipping_brings_the_norm_to_the_limit_and_no_lower(norm: float, clip: float):
    factor = float(clip_factor(OptimizerConfig(clip_norm=clip), jnp.float32(norm) ** 2))
    assert norm * factor == pytest.approx(min(norm, clip), rel=1e-5)


@pytest.mark.parametrize(("warmup_steps", "num_steps"), [(0, 1), (0, 10), (3, 10), (5, 2)])
def test_the_learning_rate_rises_to_its_peak_and_falls_to_its_end(
    warmup_steps: int, num_steps: int
):
    config = OptimizerConfig(learning_rate=0.1, warmup_steps=warmup_steps, final_fraction=0.2)
    rate = learning_rate(config, num_steps=num_steps)
    rates = [rate_after(step, config, num_steps=num_steps) for step in range(num_steps + 1)]
    assert rates == pytest.approx([float(np.asarray(rate(step))) for step in range(num_steps + 1)])
    assert all(0 < r <= 0.1 + 1e-7 for r in rates)
    if num_steps > warmup_steps:
        assert max(rates) == pytest.approx(0.1)
        assert rates[-1] == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("tied", "index", "cut", "segments"),
    [
        (True, 0, (2, 3), ()),
        (True, 1, (2, 3), (1, 2)),
        (True, 1, (1, 2, 2), (2,)),
        (True, 0, (5,), ()),
        (False, 1, (2, 3), ()),
        (False, 0, (5,), (2, 1, 2)),
    ],
)
def test_buckets_hold_every_gradient_once(
    tied: bool, index: int, cut: tuple[int, ...], segments: tuple[int, ...]
):
    functions = stage_functions(index=index, cut=cut, tied=tied)
    params = jax.jit(lambda: functions.stage.init(seed=SEED))()
    gradients = draw_gradients(params, 0)
    has_tied_bucket = functions.stage.has_tied_bucket
    buckets = pack(gradients, tied=has_tied_bucket, segments=segments)
    assert len(buckets[Bucket.STAGE]) == max(1, len(segments))
    is_end = index in (0, len(cut) - 1)
    assert (Bucket.TIED in buckets) == (tied and len(cut) > 1 and is_end)
    vectors = [vector for bucket in buckets.values() for vector in bucket]
    assert sum(v.size for v in vectors) == sum(x.size for x in jax.tree.leaves(params))
    restored = unpack(buckets, params, tied=has_tied_bucket, segments=segments)
    jax.tree.map(np.testing.assert_array_equal, restored, gradients)
    on_host = jax.tree.map(np.asarray, buckets)
    restored = unpack(on_host, params, tied=has_tied_bucket, segments=segments)
    jax.tree.map(np.testing.assert_array_equal, restored, gradients)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(restored))


@pytest.mark.parametrize("tied", [True, False])
def test_replicas_with_other_partitions_pack_a_segment_alike(tied: bool):
    """The first segment of a replica of one stage is the first stage of the other replica."""
    whole, first, last = (
        stage_functions(index=index, cut=cut, tied=tied)
        for index, cut in ((0, (5,)), (0, (2, 3)), (1, (2, 3)))
    )
    gradients = draw_gradients(jax.jit(lambda: whole.stage.init(seed=SEED))(), 0)
    # The embedding of a replica of one stage has its own bucket, if other replicas share theirs.
    of_whole = pack(gradients, tied=tied, segments=(2, 3))
    of_stages = [
        pack(part(gradients, each), tied=each.stage.has_tied_bucket) for each in (first, last)
    ]
    for segment, of_stage in zip(of_whole[Bucket.STAGE], of_stages, strict=True):
        np.testing.assert_array_equal(segment, of_stage[Bucket.STAGE][0])
    assert [Bucket.TIED in each for each in (of_whole, *of_stages)] == [tied] * 3
