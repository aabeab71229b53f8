"""A checkpoint that was saved with one cut loads with any other, bit by bit."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint import (
    begin_checkpoint,
    commit,
    flatten,
    names,
    open_checkpoint,
    restore,
    write_shard,
)

NUM_LAYERS = 6
Tree = dict[str, Any]


def model(layers: range) -> Tree:
    """Return the parameters of some layers, and of the ends where they hold the first or last."""
    generator = np.random.default_rng(0)
    scale = generator.normal(size=(NUM_LAYERS, 5))
    parameters: Tree = {
        "blocks": {
            "attention": {"qkv": {"kernel": generator.normal(size=(NUM_LAYERS, 2, 3))}},
            "scale": scale.astype(jnp.bfloat16),
            "gate": generator.normal(size=NUM_LAYERS).astype(np.float32),
        },
        "embed": {"tokens": generator.normal(size=(7, 5))},
        "head": {"norm": {"scale": np.ones(5)}, "temperature": np.array(2.0)},
    }
    parameters["blocks"] = jax.tree.map(
        lambda leaf: leaf[layers.start : layers.stop], parameters["blocks"]
    )
    if layers.start > 0:
        del parameters["embed"]
    if layers.stop < NUM_LAYERS:
        del parameters["head"]
    return parameters


def template(parameters: Tree) -> Tree:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), parameters)


def assert_same_bits(tree: Tree, other: Tree) -> None:
    assert jax.tree.structure(tree) == jax.tree.structure(other)
    for leaf, twin in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True):
        assert (leaf.dtype, leaf.shape) == (twin.dtype, twin.shape)
        assert np.asarray(leaf).tobytes() == np.asarray(twin).tobytes()


def cuts() -> st.SearchStrategy[list[range]]:
    """Draw stages that cover the layers in order, empty ones in between among them."""
    edges = st.lists(st.integers(1, NUM_LAYERS - 1), max_size=4).map(sorted)
    return edges.map(
        lambda inner: [
            range(start, stop)
            for start, stop in zip([0, *inner], [*inner, NUM_LAYERS], strict=True)
        ]
    )


@settings(max_examples=40)
@given(saved=cuts(), loaded=cuts())
def test_one_cut_to_another(saved: list[range], loaded: list[range]) -> None:
    with TemporaryDirectory() as run:
        folder = begin_checkpoint(Path(run), step=1)
        entries = []
        for number, layers in enumerate(saved):
            parameters = model(layers)
            tensors = flatten(parameters, first_layer=layers.start)
            tensors |= flatten(parameters, first_layer=layers.start, prefix="mu.")
            entries += write_shard(folder, f"stage-{number}", tensors)
        opened = open_checkpoint(commit(folder, entries, {}))
        for layers in loaded:
            expected = model(layers)
            for prefix in ("", "mu."):
                wanted = names(template(expected), first_layer=layers.start, prefix=prefix)
                restored = restore(
                    template(expected),
                    opened.read(wanted),
                    first_layer=layers.start,
                    prefix=prefix,
                )
                assert_same_bits(restored, expected)


def test_names_are_those_of_layers() -> None:
    flat = flatten(model(range(4, 6)), first_layer=4)
    assert list(flat) == [
        *("blocks.4.attention.qkv.kernel", "blocks.5.attention.qkv.kernel"),
        *("blocks.4.gate", "blocks.5.gate", "blocks.4.scale", "blocks.5.scale"),
        *("head.norm.scale", "head.temperature"),
    ]
    assert flat["blocks.5.gate"].shape == ()
    assert tuple(flat) == names(model(range(4, 6)), first_layer=4)


def test_arrays_of_jax_are_not_copied_on_the_cpu() -> None:
    leaf = jnp.arange(1024.0).reshape(4, 256)
    parameters = {"blocks": {"scale": leaf}}
    flat = flatten(parameters, first_layer=0)
    assert all(np.shares_memory(part, np.asarray(leaf)) for part in flat.values())
    assert_same_bits(restore(parameters, flat, first_layer=0), parameters)


def test_nothing() -> None:
    assert flatten({}, first_layer=0) == {}
    assert restore({"blocks": {}, "head": {}}, {}, first_layer=0) == {"blocks": {}, "head": {}}
    empty = {"blocks": {"scale": np.ones((0, 3))}}
    assert names(empty, first_layer=3) == ()
    assert restore(empty, {}, first_layer=3)["blocks"]["scale"].shape == (0, 3)


@pytest.mark.parametrize(
    ("found", "layout"),
    [(np.ones(3, np.float32), r"float32\[3\]"), (np.ones(2), r"float64\[2\]")],
)
def test_another_model(found: np.ndarray, layout: str) -> None:
    wanted = {"blocks": {"scale": jax.ShapeDtypeStruct((1, 2), np.float32)}}
    match = rf"its tensor blocks\.4\.scale is {layout}, not float32\[2\]; resume with the model"
    with pytest.raises(CheckpointError, match=match):
        restore(wanted, {"blocks.4.scale": found}, first_layer=4)


def test_a_layer_that_is_not_there() -> None:
    wanted = {"blocks": {"scale": jax.ShapeDtypeStruct((2, 2), np.float32)}}
    with pytest.raises(
        CheckpointError, match=r"must contain the tensor blocks\.5\.scale, and does"
    ):
        restore(wanted, {"blocks.4.scale": np.ones(2, np.float32)}, first_layer=4)
