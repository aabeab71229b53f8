"""Computes with parts of sequences on four devices, and with whole ones on one."""

import json
import math
import sys
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxpipe.models.gpt import Gpt
from jaxpipe.models.gpt_config import Attention, GptConfig
from jaxpipe.models.kernels import ring_attention
from jaxpipe.models.kernels.attention import grouped_attention
from jaxpipe.models.kernels.ring_attention import Ring, RingAttention
from jaxpipe.models.kernels.scores import Scores
from jaxpipe.models.llama import Llama
from jaxpipe.runtime.config import Loop
from jaxpipe.runtime.rank_mesh import MeshConfig
from jaxpipe.runtime.stage.context import in_order, zigzag
from jaxpipe.runtime.stage.mesh import layout_over
from jaxpipe.runtime.stage.placed import SampleParts
from jaxpipe.runtime.stage.stage import Stage
from jaxpipe.runtime.stage.vjp import forward_with_residuals
from jaxpipe.schedule import Remat
from tests.oracles.llamas import GEMMA, QWEN3, SHORT

BATCH, SEQUENCE, VOCABULARY, NUM_LAYERS = 2, 16, 19, 2
MODELS = {
    "gpt": Gpt(
        GptConfig(
            num_layers=NUM_LAYERS, dim=16, num_heads=4, sequence=SEQUENCE, vocabulary=VOCABULARY
        )
    ),
    "qwen3": Llama(replace(QWEN3, num_layers=NUM_LAYERS, sequence=SEQUENCE)),
    "gemma2": Llama(replace(GEMMA, num_layers=NUM_LAYERS, sequence=SEQUENCE)),
    # Each part is short, and the whole is long; of packed texts some are.
    "phi3": Llama(replace(SHORT, num_layers=NUM_LAYERS, sequence=SEQUENCE, rope_sequence=8)),
    "phi3, shorter": Llama(
        replace(SHORT, num_layers=NUM_LAYERS, sequence=SEQUENCE, rope_sequence=5)
    ),
}
MESHES = {
    "context 2": MeshConfig(context=2),
    "context 4": MeshConfig(context=4),
    "context 2, tensor 2": MeshConfig(context=2, tensor=2),
    "data 2, context 2, sharded": MeshConfig(data=2, context=2, sharded=True),
    "tensor 2, in parts": MeshConfig(tensor=2, sequence_parallel=True),
    "data 2, tensor 2, in parts": MeshConfig(data=2, tensor=2, sequence_parallel=True),
}
REMATS = {name: Remat.FULL if name == "context 4" else Remat.NONE for name in MESHES}
HOW = {
    "causal": Scores(),
    "both ways": Scores(causal=False),
    "window and bound": Scores(window=5, softcap=2.0),
}
# Not each with each: XLA compiles for a second or two.
ATTENTION = [
    ("causal", 2, "whole"),
    ("causal", 4, "packed"),
    ("both ways", 4, "whole"),
    ("window and bound", 2, "packed"),
]
STAGES = [
    ("gpt", "data 2, context 2, sharded", "whole"),
    ("gpt", "data 2, tensor 2, in parts", "whole"),
    ("gpt", "tensor 2, in parts", "packed"),
    ("qwen3", "context 2, tensor 2", "whole"),
    ("gemma2", "context 4", "whole"),
    ("gemma2", "context 2", "packed"),
    ("phi3", "context 2", "whole"),
    ("phi3, shorter", "context 2", "packed"),
]
RESIDUALS = [("gpt", "context 4"), ("gemma2", "tensor 2, in parts")]


def main(folder: Path) -> None:
    report = {
        "attention": {
            f"{how} {num_parts} {kind}": _attention_error(
                HOW[how], num_parts=num_parts, is_packed=kind == "packed"
            )
            for how, num_parts, kind in ATTENTION
        },
        "stage": {
            f"{name}: {mesh}, {kind}": _stage_error(name, mesh, is_packed=kind == "packed")
            for name, mesh, kind in STAGES
        },
        "held": {
            f"{name}: {mesh}": [_held_bytes(MODELS[name], which) for which in (MESHES[mesh], None)]
            for name, mesh in RESIDUALS
        },
    }
    (folder / "report.json").write_text(json.dumps(report))


def _attention_error(how: Scores, *, num_parts: int, is_packed: bool) -> float:
    """Return the largest difference of output and gradients, by the largest value of each."""
    # Of pieces of 4 tokens, 2 at once; pieces of 8 whole.
    ring_attention.MAX_ROWS = 2 if num_parts == 4 else 8
    draw = np.random.default_rng(0)
    q, k, v, weights = (
        jnp.asarray(draw.normal(size=(BATCH, 32, heads, 8)), jnp.float32) for heads in (4, 2, 2, 4)
    )
    segments = jnp.asarray(np.sort(draw.integers(0, 4, (BATCH, 32)), axis=1))
    mesh = Mesh(np.array(jax.devices()[:num_parts]), ("ring",))

    def whole(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        own = segments if is_packed else None
        return grouped_attention(q, k, v, form=Attention.PRODUCT, scores=how, segments=own)

    def part(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array) -> jax.Array:
        ring = Ring(axis="ring", size=num_parts)
        attention = RingAttention(
            ring, positions=segments, segments=segments if is_packed else None
        )
        return attention(q, k, v, form=Attention.AUTO, scores=how).reshape(*q.shape[:2], -1)

    def parts(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        spec = PartitionSpec(None, "ring")
        run = jax.shard_map(part, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
        mixed = run(*(zigzag(each, num_parts) for each in (q, k, v, segments)))
        return in_order(mixed, num_parts)

    def value(attend: Any, q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[Any, Any]:
        mixed = attend(q, k, v).reshape(weights.shape)
        return (mixed * weights).sum(), mixed

    found, expected = (
        jax.jit(jax.value_and_grad(partial(value, attend), argnums=(0, 1, 2), has_aux=True))(
            q, k, v
        )
        for attend in (parts, whole)
    )
    return _worst(found, expected)


def _stage_error(name: str, mesh: str, *, is_packed: bool) -> float:
    """Return the largest difference of the loss and of gradients, by the largest value of each."""
    expected = _values(name, "one device", REMATS[mesh], is_packed=is_packed)
    return _worst(_values(name, mesh, REMATS[mesh], is_packed=is_packed), expected)


@cache
def _values(name: str, mesh: str, remat: Remat, *, is_packed: bool) -> Any:
    """Return the loss and the gradients of a model as one stage."""
    draw = np.random.default_rng(1)
    inputs, targets = draw.integers(0, VOCABULARY, (2, BATCH, SEQUENCE), dtype=np.int32)
    targets[0, :5] = -100  # these do not count
    segments = np.sort(draw.integers(0, 3, (BATCH, SEQUENCE), dtype=np.int32), axis=1)
    packed: Any = SampleParts(segments=segments, targets=targets) if is_packed else targets
    model, config = MODELS[name], MESHES.get(mesh, MeshConfig())
    layout = layout_over(jax.local_devices(), config, split=model.split)
    stage = _stage(model, layout=layout, loop=Loop.SCAN, remat=remat)
    params = layout.place(stage.init(seed=3))
    value = jax.value_and_grad(lambda params: stage.apply(params, inputs, packed, None))
    return jax.jit(value)(params)


def _held_bytes(model: Any, mesh: MeshConfig | None) -> int:
    """Return the bytes of the residuals of a stage of layers that a device holds."""
    layout = layout_over(jax.local_devices(), mesh or MeshConfig(), split=model.split)
    stage = _stage(model, layout=layout, index=1, num_stages=3)
    x = jnp.zeros((BATCH, SEQUENCE, model.config.dim))
    params = layout.place(stage.spread(stage.init(seed=3)))

    def forward(params: Any, x: jax.Array) -> Any:
        return forward_with_residuals(
            lambda params, x: stage.apply(params, x, None, None), params, x
        )

    compiled = jax.jit(forward).lower(params, x).compile()
    shapes, shardings = (
        jax.tree.leaves(each[1]) for each in (compiled.out_info, compiled.output_shardings)
    )
    return sum(
        math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf, sharding in zip(shapes, shardings, strict=True)
    )


def _stage(model: Any, *, index: int = 0, num_stages: int = 1, **kinds: Any) -> Stage:
    return Stage(
        model=model,
        index=index,
        num_stages=num_stages,
        layers=range(model.num_layers),
        **kinds,
    )


def _worst(found: Any, expected: Any) -> float:
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
