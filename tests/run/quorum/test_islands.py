"""Islands that train over a merge server: as an outer loop in one run does, and as they come."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from jaxpipe.comm.local import run_ranks
from jaxpipe.config import Config, config_from, job_from
from jaxpipe.propose.resolve import plan_from
from jaxpipe.run.quorum.merged_checkpoints import MergedCheckpoints, saved_merger
from jaxpipe.runtime.checkpoint import latest, open_checkpoint
from jaxpipe.runtime.metrics.records import StepMetrics, read_metrics
from jaxpipe.runtime.step import worker
from jaxpipe.runtime.train import train
from tests.run.quorum.islands import BATCH, Serving, serving
from tests.runtime.training import Tree, compile_stage_once, run_tree, small_tree

pytestmark = pytest.mark.slow

QUORUM: dict[str, Any] = {"islands": 2, "every": 2, "least": 2, "timeout_s": 60.0}
STAGES: dict[str, Any] = {"stages": 2, "replicas": 1}


def tree_of(folder: Path, dataset: Path, **sections: dict[str, Any]) -> Tree:
    train = {"batch": BATCH, **sections.pop("train", {})}
    return small_tree(folder, dataset, **{"plan": STAGES, **sections}, train=train)


def island(tree: Tree, number: int, **quorum: Any) -> Config:
    folder = f"{tree['run']['folder']}-{number}"
    section = {"server": "in this process", "island": number, **QUORUM, **quorum}
    return config_from({**tree, "run": {**tree["run"], "folder": folder}, "quorum": section})


def run_island(served: Serving, config: Config) -> list[StepMetrics]:
    plan = plan_from(config)
    job = job_from(config, plan)
    line = served.line(config.quorum)

    def work(transport: Any) -> None:
        own = replace(job, line=line) if transport.rank == 0 else job
        train(own, transport, checkpoint=None, observe=lambda _: None)

    run_ranks(plan.num_ranks, work)
    return read_metrics(job.metrics_file)


def run_islands(served: Serving, configs: Sequence[Config]) -> list[list[StepMetrics]]:
    with (
        patch.object(worker, "compile_stage", compile_stage_once),
        ThreadPoolExecutor(len(configs)) as pool,
    ):
        running = [pool.submit(run_island, served, config) for config in configs]
        return [metrics.result(timeout=300) for metrics in running]


def tensors_of(folder: str | Path) -> dict[str, np.ndarray]:
    checkpoint = open_checkpoint(latest(Path(folder)))
    names = (n for n in checkpoint.tensors if not n.startswith(("mu.", "nu.", "momentum.", "isl")))
    return checkpoint.read(names)


@pytest.mark.parametrize("second", [{}, {"stages": 1}, {"stages": 1, "replicas": 2}])
def test_islands_of_one_pace_train_as_those_of_one_run_whatever_their_plans(
    tmp_path: Path, dataset: Path, second: dict[str, Any]
) -> None:
    together = tree_of(
        tmp_path / "together",
        dataset,
        plan={**STAGES, "replicas": 2},
        train={"batch": 2 * BATCH},
        outer={"islands": 2, "every": 2},
    )
    expected = run_tree(together)
    tree = tree_of(tmp_path / "apart", dataset)
    other = tree_of(tmp_path / "apart", dataset, plan={**STAGES, **second})
    configs = [island(tree, 0), island(other, 1)]
    with serving(configs[0].quorum) as served:
        metrics = run_islands(served, configs)
        served.thread.join(timeout=60)
        merger = served.server.merger
    assert [m.loss for m in metrics[0]] == pytest.approx([m.loss for m in expected], rel=2e-5)
    assert [len(merge.islands) for merge in served.merges] == [2, 2]
    assert [m.outer_bytes is not None for m in metrics[0]] == [False, True, False, True]
    anchor = tensors_of(tmp_path / "together")
    assert merger is not None
    for name, tensor in anchor.items():
        np.testing.assert_allclose(
            merger.states[name].anchor, tensor, rtol=2e-3, atol=2e-5, err_msg=name
        )
        # Each island ends with the anchor, in a checkpoint that every command reads.
        for config in configs:
            np.testing.assert_array_equal(
                tensors_of(config.run.folder)[name], merger.states[name].anchor
            )


def test_an_island_whose_steps_are_few_weighs_as_much_as_its_tokens(
    tmp_path: Path, dataset: Path
) -> None:
    tree = tree_of(tmp_path / "apart", dataset)
    # It ends after one step of the four, without being asked.
    short = tree_of(tmp_path / "apart", dataset, train={"steps": 1})
    configs = [island(tree, 0), island(short, 1)]
    with serving(configs[0].quorum) as served:
        run_islands(served, configs)
    first, second = served.merges
    assert [(part.steps, part.weight) for part in first.islands] == [
        (2, pytest.approx(2 / 3)),
        (1, pytest.approx(1 / 3)),
    ]
    assert [part.island for part in second.islands] == [0]


def test_adapters_alone_are_delivered(tmp_path: Path, dataset: Path) -> None:
    tree = tree_of(tmp_path / "apart", dataset, lora={"rank": 2, "targets": ["attention.*"]})
    configs = [island(tree, number) for number in range(2)]
    with serving(configs[0].quorum) as served:
        run_islands(served, configs)
        merger = served.server.merger
    assert merger is not None
    assert merger.states
    assert all("lora" in name for name in merger.states)


def test_a_server_continues_from_its_newest_anchor(tmp_path: Path, dataset: Path) -> None:
    tree = tree_of(tmp_path / "apart", dataset)
    config = island(tree, 0, islands=1, least=1)
    folder = tmp_path / "server"
    checkpoints = MergedCheckpoints(folder, {}, keep=2)
    with serving(config.quorum) as served:
        run_islands(served, [config])
        merger = served.server.merger
    assert merger is not None
    checkpoints.merged(merger)
    checkpoints.close(merger)
    again = saved_merger(folder, config.quorum)
    assert again is not None
    assert (again.version, again.digest()) == (2, served.merges[-1].digest)
    for name, state in merger.states.items():
        np.testing.assert_array_equal(again.states[name].momentum, state.momentum)
