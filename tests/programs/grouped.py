"""Trains plans whose ranks have several devices, and one device; needs eight devices."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from jaxpipe import topo
from jaxpipe.baselines.published.named_layout import named_plan
from jaxpipe.baselines.systems import System
from jaxpipe.plan import Plan, Sharing, default_plan, write_plan
from jaxpipe.plan.sync import with_island_trees
from jaxpipe.runtime.rank_mesh import MeshConfig
from jaxpipe.schedule import Op
from jaxpipe.search import Task
from tests.plan.models import profile_of
from tests.plan_section import decided
from tests.programs.meshed import collectives
from tests.runtime.pipelined import compiled_stage
from tests.runtime.training import run_tree, tiny_tree, write_dataset

NUM_LAYERS, BATCH = 2, 16
MODEL = {"num_layers": NUM_LAYERS, "dim": 32, "num_heads": 8}
"""Without dropout, whose masks depend on the size of microbatches."""
CLUSTERS = {
    System.MEGATRON_P2T4: "homogeneous:hosts=2,devices=4",
    System.ZERO3: "homogeneous:hosts=2,devices=4",
}


def layout_plan(system: System) -> Plan:
    """Return the plan of a published baseline on eight devices."""
    cluster = topo.load(CLUSTERS[system])
    task = Task(cluster=cluster, profile=profile_of(NUM_LAYERS), batch=BATCH, tied=True)
    return named_plan(system, task, seed=0)


def unlike_plan() -> Plan:
    """Return a replica of one stage on four devices, and one of two stages on two and on one."""
    return _unlike(microbatch=2, sharing=Sharing.TENSOR)


def _unlike(*, microbatch: int, sharing: Sharing) -> Plan:
    cluster = topo.load("homogeneous:hosts=1,devices=8")
    config = decided(cuts=((2,), (1, 1)), shares=(12, 4), microbatch=microbatch)
    plan = default_plan(config, cluster, num_layers=NUM_LAYERS, batch=BATCH, tied=True)
    plan = plan.on_groups((((0, 1, 2, 3),), ((4, 5), (6,))))
    return replace(with_island_trees(plan, cluster.devices), sharing=sharing)


def main(folder: Path) -> None:
    dataset = write_dataset(folder)
    alone = _run(folder / "alone", dataset, {"stages": 1, "replicas": 1, "cluster": "laptop"})
    found = {"alone": alone}
    for system, cluster in CLUSTERS.items():
        found[system.value] = _run_plan(folder / system, dataset, layout_plan(system), cluster)
    cluster = "homogeneous:hosts=1,devices=8"
    in_parts = replace(unlike_plan(), sharing=Sharing.SEQUENCE)
    found["in parts"] = _run_plan(folder / "in-parts", dataset, in_parts, cluster)
    in_samples = _unlike(microbatch=4, sharing=Sharing.DATA)
    found["in samples"] = _run_plan(folder / "in-samples", dataset, in_samples, cluster)
    first, second = _unlike(microbatch=4, sharing=Sharing.TENSOR).pipelines
    pipelines = (replace(first, data_parts=(2,)), replace(second, data_parts=(2, 1)))
    mixed = replace(_unlike(microbatch=4, sharing=Sharing.TENSOR), pipelines=pipelines)
    found["mixed"] = _run_plan(folder / "mixed", dataset, mixed, cluster)
    report = {"losses": found, "sharded": _sharded()}
    (folder / "report.json").write_text(json.dumps(report))


def _run_plan(folder: Path, dataset: Path, plan: Plan, cluster: str) -> list[float]:
    file = folder.with_suffix(".toml")
    write_plan(plan, topo.load(cluster), file)
    return _run(folder, dataset, {"file": str(file), "cluster": cluster})


def _run(folder: Path, dataset: Path, plan: dict[str, Any]) -> list[float]:
    tree = tiny_tree(
        folder,
        dataset,
        model=MODEL | {"tied": True},
        train={"batch": BATCH, "steps": 2, "eval_every": 2, "loop": "scan"},
    )
    tree["plan"] = plan
    metrics = run_tree(tree)
    return [m.loss for m in metrics] + [m.eval_loss for m in metrics if m.eval_loss is not None]


def _sharded() -> dict[str, Any]:
    """Return what a device holds of a sharded stage's parameters, and its collectives."""
    stage = compiled_stage(
        cut=(2, 1, 2),
        stage=1,
        tied=False,
        mesh=MeshConfig(data=2, sharded=True),
        ops=(Op.BACKWARD,),
    )
    leaves = jax.tree.leaves(stage.init()[0])
    return {
        "held": sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves),
        "whole": sum(leaf.nbytes for leaf in leaves),
        "forward": collectives(stage.executables["evaluate"]),
        "backward": collectives(stage.executables["backward"]),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
