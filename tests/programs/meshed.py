"""Trains over a mesh and without, and looks into what was compiled; needs four devices."""

import json
import math
import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jax

from jaxpipe.runtime.rank_mesh import MeshConfig
from jaxpipe.runtime.stage.compile import CompiledStage
from jaxpipe.schedule import Op
from tests.runtime.pipelined import compiled_stage
from tests.runtime.training import run_tree, tiny_tree, write_dataset

MESH = {"data": 2, "tensor": 2}
SHAPES = {
    "layer": {"cut": (2, 1, 2), "stage": 1, "tied": False},
    "first": {"cut": (1, 1, 1), "stage": 0, "tied": True},
    "last": {"cut": (1, 1, 1), "stage": 2, "tied": False},
}
_COLLECTIVE = re.compile(
    r" (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)


def main(folder: Path) -> None:
    dataset = write_dataset(folder)
    layer = compiled_stage(
        cut=(2, 1, 2), stage=1, tied=False, mesh=MeshConfig(tensor=2), ops=(Op.BACKWARD,)
    )
    report = {
        "losses": _losses(folder, dataset),
        "scaled": _scaled_losses(folder, dataset),
        "forward": collectives(layer.executables["evaluate"]),
        "backward": collectives(layer.executables["backward"]),
        "bytes": _parameter_bytes(layer),
        "held": {name: _held_bytes(shape) for name, shape in SHAPES.items()},
    }
    (folder / "report.json").write_text(json.dumps(report))


def _losses(folder: Path, dataset: Path) -> dict[str, list[float]]:
    """Return the losses of runs without a mesh, with one, and with a change after two steps."""

    def run(name: str, mesh: dict[str, int], *, resumed_from: str | None = None) -> list[float]:
        if resumed_from is not None:
            shutil.copytree(folder / resumed_from, folder / name)
            shutil.rmtree(folder / name / "checkpoints" / "step-00000004")
        return _run(folder / name, dataset, mesh=mesh, resume=resumed_from is not None)

    return {
        "without": run("without", {}),
        "with": run("with", MESH),
        "gained": run("gained", MESH, resumed_from="without"),
        "lost": run("lost", {}, resumed_from="with"),
    }


def _scaled_losses(folder: Path, dataset: Path) -> list[float]:
    """Return the losses of a run over the mesh in which the scale of the loss grows."""
    return _run(
        folder / "scaled", dataset, mesh=MESH, loss_scale={"enabled": True, "growth_steps": 1}
    )


def _run(
    folder: Path, dataset: Path, *, resume: bool = False, **sections: dict[str, Any]
) -> list[float]:
    tree = tiny_tree(
        folder,
        dataset,
        model={"num_layers": 2, "dropout": 0.1},
        plan={
            "stages": 2,
            "chunks": 2,
            "replicas": 1,
            "microbatch": 2,
            "schedule": "interleaved-1f1b",
        },
        **sections,
    )
    metrics = run_tree(tree, resume=resume)
    return [m.loss for m in metrics] + [m.eval_loss for m in metrics if m.eval_loss is not None]


def collectives(compiled: Any) -> dict[str, int]:
    """Return how often each collective occurs in a compiled function."""
    return Counter(_COLLECTIVE.findall(compiled.as_text()))


def _parameter_bytes(layer: CompiledStage) -> tuple[int, int]:
    """Return what the kernels of a layer take on the first device, and in all."""
    kernels = [leaf for leaf in jax.tree.leaves(layer.init()[0]) if leaf.ndim > 2]
    on_first = sum(leaf.addressable_shards[0].data.nbytes for leaf in kernels)
    return on_first, sum(leaf.nbytes for leaf in kernels)


def _held_bytes(shape: dict[str, Any]) -> tuple[int, int]:
    """Return what each device holds of a stage's parameters, and of a microbatch's residuals."""
    stage = compiled_stage(
        **shape, mesh=MeshConfig(data=MESH["data"], tensor=MESH["tensor"]), ops=(Op.BACKWARD,)
    )
    held = []
    for name, part in (("init", 0), ("forward", 1)):
        compiled = stage.executables[name]
        shapes = jax.tree.leaves(compiled.out_info[part])
        shardings = jax.tree.leaves(compiled.output_shardings[part])
        held.append(
            sum(
                math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
                for leaf, sharding in zip(shapes, shardings, strict=True)
            )
        )
    return held[0], held[1]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
