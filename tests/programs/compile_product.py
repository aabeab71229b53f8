"""Compile a product whose contracted dim is split over four devices, for each target asked."""

import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxpipe.baselines.autoshard.hlo import (
    CompileTarget,
    compile_step,
    count_collectives,
    target_devices,
)


def _compiled(target: CompileTarget) -> dict[str, Any]:
    mesh = Mesh(np.array(target_devices(target, num_devices=4), dtype=object), ("op",))

    def abstract(shape: tuple[int, int], spec: PartitionSpec) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))

    product = jax.jit(jnp.matmul, out_shardings=NamedSharding(mesh, PartitionSpec()))
    x, w = abstract((8, 8), PartitionSpec(None, "op")), abstract((8, 8), PartitionSpec("op", None))
    found = compile_step(product, (x, w), target)
    return {
        "counts": count_collectives(found.collectives),
        "arguments": found.memory.arguments,
        "beside": [each.num_beside for each in found.asynchronous],
    }


if __name__ == "__main__":
    print(json.dumps([_compiled(CompileTarget(each)) for each in json.loads(sys.stdin.read())]))  # noqa: T201
