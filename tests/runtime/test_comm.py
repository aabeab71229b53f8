"""What `plan.all_reduce` and `[comm]` do to a run: the losses stay, the bytes become fewer."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jaxpipe import topo
from jaxpipe.collective import CodecKind
from jaxpipe.config import config_from
from jaxpipe.errors import ConfigError
from jaxpipe.plan import write_plan
from jaxpipe.propose.resolve import plan_from
from jaxpipe.run.rank.threads import train as train_in_threads
from jaxpipe.runtime.config import CommConfig
from jaxpipe.runtime.metrics.records import StepMetrics
from jaxpipe.runtime.step.worker import boundary_codecs
from jaxpipe.schedule import ScheduleKind
from tests.runtime.pipelined import make_plan
from tests.runtime.training import Tree, run_tree, tiny_tree

pytestmark = pytest.mark.slow

HIERARCHICAL = {"all_reduce": "hierarchical"}
VALUES = 16 * 16
"""In a message between stages: 16 tokens of 16 dims."""
NUM_MESSAGES = 2 * 4 * 2
"""In a step: of 2 replicas, with 4 microbatches, both ways."""


def losses(metrics: list[StepMetrics]) -> list[float]:
    return [m.loss for m in metrics]


def coded(folder: Path, dataset: Path, **comm: Any) -> Tree:
    return tiny_tree(folder, dataset, plan=HIERARCHICAL, comm=comm)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> list[StepMetrics]:
    """Return a run without codecs."""
    return run_tree(tiny_tree(tmp_path_factory.mktemp("plain"), dataset, plan=HIERARCHICAL))


def test_a_library_is_refused_where_there_is_none(tmp_path: Path, dataset: Path):
    run = tmp_path / "run"
    tree = tiny_tree(run, dataset, plan={"all_reduce": "library"})
    with pytest.raises(ConfigError, match=r"`plan.all_reduce`.* library"):
        train_in_threads(config_from(tree))
    assert not run.exists()


@pytest.mark.parametrize(
    ("comm", "message_bytes", "part", "nearness"),
    [
        ({"boundary": "bf16", "gradients": "bf16"}, 2 * VALUES, 1 / 2, 1e-3),
        ({"boundary": "int8", "gradients": "int8"}, VALUES + 4, 1 / 4 + 1 / 256, 2e-3),
        ({"boundary": "fp8", "gradients": "fp8"}, VALUES + 4, 1 / 4 + 1 / 256, 1e-2),
        ({"gradients": "top_k", "top_k_fraction": 0.25}, 4 * VALUES, 1 / 2, 5e-2),
    ],
)
def test_codecs_save_bytes_and_keep_the_loss(
    plain: list[StepMetrics],
    tmp_path: Path,
    dataset: Path,
    comm: dict[str, Any],
    message_bytes: int,
    part: float,
    nearness: float,
):
    metrics = run_tree(coded(tmp_path, dataset, **comm))
    assert losses(metrics) == pytest.approx(losses(plain), rel=nearness)
    assert losses(metrics) != losses(plain)
    of_gradients = plain[-1].sent_bytes - NUM_MESSAGES * 4 * VALUES
    expected = NUM_MESSAGES * message_bytes + part * of_gradients
    # off by the scales of blocks that are not full, and by the values kept of odd sizes
    assert metrics[-1].sent_bytes == pytest.approx(expected, rel=2e-3)
    assert len({m.sent_bytes for m in metrics}) == 1


def test_the_codecs_of_a_plan_take_the_place_of_the_configured_one(
    plain: list[StepMetrics], tmp_path: Path, dataset: Path
):
    """Replica 0 has its own codec, replica 1 that of the configuration: bytes are of both."""
    tree = coded(tmp_path, dataset, boundary="bf16")
    config = config_from(tree)
    plan, cluster = plan_from(config), topo.load("laptop")
    first, second = plan.pipelines
    own = replace(plan, pipelines=(replace(first, codecs=(CodecKind.INT8,)), second))
    write_plan(own, cluster, tmp_path / "own.toml")
    metrics = run_tree({**tree, "plan": {"cluster": "laptop", "file": str(tmp_path / "own.toml")}})
    assert losses(metrics) == pytest.approx(losses(plain), rel=2e-3)
    messages = NUM_MESSAGES // 2
    saved = messages * (4 * VALUES - (VALUES + 4)) + messages * 2 * VALUES
    assert plain[-1].sent_bytes - metrics[-1].sent_bytes == saved


def test_runs_with_codecs_repeat_bit_by_bit(tmp_path: Path, dataset: Path):
    comm = {"boundary": "int8", "gradients": "top_k", "chunk_bytes": 1000}
    first, second = (run_tree(coded(tmp_path / name, dataset, **comm)) for name in "ab")
    assert losses(first) == losses(second)
    assert [m.grad_norm for m in first] == [m.grad_norm for m in second]
    assert first[-1].eval_loss == second[-1].eval_loss


def test_resuming_says_that_errors_are_forgotten(
    tmp_path: Path, dataset: Path, caplog: pytest.LogCaptureFixture
):
    plan = {**HIERARCHICAL, "stages": 1}
    for steps, words in ((1, []), (2, ["resumes after step 1 with zero residuals"])):
        tree = tiny_tree(
            tmp_path, dataset, plan=plan, comm={"gradients": "top_k"}, train={"steps": steps}
        )
        metrics = run_tree(tree, resume=steps > 1)
        assert [m.step for m in metrics] == list(range(1, steps + 1))
        assert len(caplog.messages) == len(words)
        assert all(w in message for w, message in zip(words, caplog.messages, strict=True))


@pytest.mark.parametrize(
    ("stages", "chunks", "peers"),
    [
        (1, 1, [set(), set()]),
        (3, 1, [{1}, {0, 2}, {1}, {4}, {3, 5}, {4}]),
        (4, 2, [{1}, {0}, {3}, {2}]),
        (3, 3, [set(), set()]),
    ],
)
def test_neighbours_in_the_pipeline_share_a_codec(stages: int, chunks: int, peers: list[set[int]]):
    plan = make_plan(
        schedule=ScheduleKind.INTERLEAVED if chunks > 1 else ScheduleKind.GPIPE,
        cut=(5 - (stages - 1), *(1,) * (stages - 1)),
        num_replicas=2,
        num_microbatches=4,
        tied=False,
        num_chunks=chunks,
    )
    comm = CommConfig(boundary=CodecKind.BF16)
    found = [set(boundary_codecs(comm, plan, rank=rank)) for rank in range(plan.num_ranks)]
    assert found == peers
    assert boundary_codecs(CommConfig(), plan, rank=0) == {}
