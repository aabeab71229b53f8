"""Ranks of the user's own launcher receive the plan that rank 0 has resolved, or its refusal."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from jaxpipe import topo
from jaxpipe.comm import Transport, run_ranks
from jaxpipe.config import Config, config_from
from jaxpipe.errors import UserError
from jaxpipe.plan import ResolvedPlan
from jaxpipe.run.folder.folder_lock import locked
from jaxpipe.run.folder.prepare_run import PLAN_FILE, prepare
from jaxpipe.run.rank.receive_plan import Start, receive_plan
from jaxpipe.run.rank.run_rank import run_rank
from jaxpipe.run.train_request import TrainRequest
from jaxpipe.topo.write import cluster_toml
from tests.runtime.training import tiny_tree

REQUEST = TrainRequest(config=Path("run.toml"))


def start(config: Config) -> Start:
    return Start(request=REQUEST, config=config)


def test_all_ranks_receive_the_plan_of_rank_0(tmp_path: Path, dataset: Path) -> None:
    config = config_from(tiny_tree(tmp_path / "run", dataset))

    def receive(transport: Transport) -> Start:
        with ExitStack() as held:
            received = receive_plan(transport, start(config), held)
        assert received is not None
        return received

    first, *others = run_ranks(4, receive)
    assert isinstance(first.resolved, ResolvedPlan)
    assert first.cluster is not None
    assert [each.resolved for each in others] == [first.resolved] * 3
    assert [each.cluster for each in others] == [None] * 3
    assert (tmp_path / "run" / PLAN_FILE).exists()


def test_shaped_ranks_receive_the_cluster_of_rank_0(tmp_path: Path, dataset: Path) -> None:
    links = topo.load("two-region")
    (tmp_path / "links.toml").write_text(cluster_toml(links))

    def receive(transport: Transport) -> Start:
        file = "links.toml" if transport.rank == 0 else "missing/links.toml"
        tree = tiny_tree(
            tmp_path / "run",
            dataset,
            run={"transport": "shaped"},
            plan={"cluster": str(tmp_path / file)},
        )
        with ExitStack() as held:
            received = receive_plan(transport, start(config_from(tree)), held)
        assert received is not None
        return received

    for each in run_ranks(4, receive):
        assert each.cluster is not None
        assert each.cluster.regions == links.regions
        assert (each.cluster.bandwidth_bytes_per_s == links.bandwidth_bytes_per_s).all()


def test_a_run_in_a_folder_that_is_in_use_is_refused_on_all_ranks(
    tmp_path: Path, dataset: Path
) -> None:
    config = config_from(tiny_tree(tmp_path / "run", dataset))

    def refuse(transport: Transport) -> str:
        with pytest.raises(UserError) as refusal, ExitStack() as held:
            receive_plan(transport, start(config), held)
        return str(refusal.value)

    with locked(tmp_path / "run"):
        first, *others = run_ranks(4, refuse)
    assert "a folder has one run at a time" in first
    assert others == ["rank 0 has refused the input"] * 3


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"train": {"batch": 7}}, "`train.batch` must be divisible by"),
        ({"data": {"folder": "nowhere"}}, "jaxpipe data prepare"),
        ({"plan": {"replicas": 1}}, "has 2 ranks, but 4 were started; use mpirun -n 2"),
    ],
)
def test_what_rank_0_refuses_ends_all_ranks_and_changes_nothing(
    tmp_path: Path, dataset: Path, sections: dict[str, dict[str, object]], words: str
) -> None:
    config = config_from(tiny_tree(tmp_path / "run", dataset, **sections))

    def refuse(transport: Transport) -> str:
        with pytest.raises(UserError) as refusal, ExitStack() as held:
            receive_plan(transport, start(config), held)
        return str(refusal.value)

    first, *others = run_ranks(4, refuse)
    assert words in first
    assert others == ["rank 0 has refused the input"] * 3
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_rank_with_a_plan_neither_reads_the_cluster_nor_simulates(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = {"stages": 1, "replicas": 1}
    tree = tiny_tree(tmp_path / "run", dataset, plan=plan, train={"steps": 1})
    config = config_from(tree)
    resolved = prepare(config, resume=False).resolved

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("the launcher has done this")

    monkeypatch.setattr(topo, "load", fail)
    monkeypatch.setattr("jaxpipe.propose.decided_plan.fastest_all_reduce", fail)
    assert run_rank(replace(start(config), resolved=resolved, is_launched=False)) == 0
    assert (tmp_path / "run" / "trace.json").exists()
