"""The plan of a run follows the hosts that are there, and returns to the configured one."""

import json
from collections import Counter
from pathlib import Path

import pytest

from jaxpipe.config import cluster_from, load_config
from jaxpipe.config.check_outer import check_outer
from jaxpipe.errors import ConfigError
from jaxpipe.plan import write_plan
from jaxpipe.propose.resolve import plan_from
from jaxpipe.run.hosts.host_plan import Planner
from jaxpipe.topo.toml_text import toml_text
from tests.runtime.training import Tree, tiny_tree

CLUSTER = "homogeneous:hosts=4,delay_ms=0,bandwidth_gbps=1e7"
TWO = ["here-0:0", "here-1:0"]


def planner(tmp_path: Path, others: Tree | None = None, **plan: object) -> Planner:
    path = tmp_path / "config.toml"
    section = {"cluster": CLUSTER, "devices": TWO, "stages": 2, "replicas": 1, **plan}
    sections = {"model": {"num_layers": 6}, "plan": section, **(others or {})}
    tree = tiny_tree(tmp_path / "run", tmp_path, **sections)
    path.write_text(toml_text(tree))
    return Planner(config=path, settings=("run.seed=3",))


def test_the_hosts_of_the_configured_plan_have_that_plan(tmp_path: Path) -> None:
    found = planner(tmp_path)
    own = found.own()
    assert (own.settings, own.used) == (("run.seed=3",), ("here-0", "here-1"))
    assert found.plan_for(["here-1", "here-0"]) == own


def test_more_hosts_take_part_and_fewer_do_the_work(tmp_path: Path) -> None:
    found = planner(tmp_path)
    joined = found.plan_for(["here-0", "here-1", "here-3"])
    assert joined is not None
    assert Counter(joined.hosts) == {"here-0": 1, "here-1": 1, "here-3": 1}
    made = load_config(found.config, joined.settings)
    plan, cluster = plan_from(made), cluster_from(made)
    hosts = [cluster.devices[plan.device(rank)].host for rank in range(plan.num_ranks)]
    assert tuple(hosts) == joined.hosts
    assert plan.batch == made.train.batch
    assert made.run.seed == 3
    left = found.plan_for(["here-0"])
    assert left is not None
    assert left.hosts == ("here-0",)
    other = found.plan_for(["here-2", "here-3"])
    assert other is not None
    assert set(other.hosts) == {"here-2", "here-3"}


def test_no_host_is_left(tmp_path: Path) -> None:
    assert planner(tmp_path).plan_for([]) is None


def test_a_host_that_the_cluster_lacks_is_named_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'elsewhere' is not in `plan\.cluster`.*add it"):
        planner(tmp_path).plan_for(["here-0", "elsewhere"])


def test_a_plan_file_is_followed_by_settings_that_unset_it(tmp_path: Path) -> None:
    found = planner(tmp_path)
    config = load_config(found.config, found.settings)
    file = tmp_path / "plan.toml"
    write_plan(plan_from(config), cluster_from(config), file)
    by_file = Planner(config=found.config, settings=(f"plan.file={json.dumps(str(file))}",))
    assert by_file.own().used == ("here-0", "here-1")
    joined = by_file.plan_for(["here-0", "here-1", "here-2"])
    assert joined is not None
    assert "plan.file=" in joined.settings
    assert len(joined.hosts) == 3
    assert load_config(found.config, joined.settings).plan.file is None


FOUR = ["here-0:0", "here-1:0", "here-2:0", "here-3:0"]


def test_islands_follow_the_replicas_and_come_back(tmp_path: Path) -> None:
    outer = {"islands": 4, "every": 2, "codec": "int8"}
    found = planner(tmp_path, {"outer": outer}, stages=1, replicas=4, devices=FOUR)
    names = [name.removesuffix(":0") for name in FOUR]
    for number, codec in ((3, "int8"), (1, "none"), (4, "int8")):
        plan = found.plan_for(names[:number])
        assert plan is not None
        made = load_config(found.config, plan.settings)
        assert (made.outer.islands, made.plan.replicas) == (number, number)
        assert (made.outer.every, made.outer.codec) == (2, codec)
        check_outer(made, plan_from(made))


def test_a_host_that_joins_is_an_island(tmp_path: Path) -> None:
    outer = {"outer": {"islands": 2, "every": 2}}
    found = planner(tmp_path, outer, stages=1, replicas=2)
    plan = found.plan_for(["here-0", "here-1", "here-3"])
    assert plan is not None
    assert load_config(found.config, plan.settings).outer.islands == 3


def test_islands_on_a_slow_network_stay_islands(tmp_path: Path) -> None:
    """Sums in every step, or stages, are slower there than one host alone."""
    slow = "homogeneous:hosts=4,delay_ms=50,bandwidth_gbps=0.5"
    large = {"num_layers": 6, "dim": 1024, "num_heads": 16, "sequence": 1024}
    for islands, expected in ((4, 3), (0, 1)):
        outer = {"outer": {"islands": islands, "every": 500}} if islands else {}
        others = {"model": large, "train": {"steps": 500}, **outer}
        found = planner(tmp_path, others, cluster=slow, stages=1, replicas=4, devices=FOUR)
        plan = found.plan_for(["here-0", "here-1", "here-2"])
        assert plan is not None
        assert load_config(found.config, plan.settings).plan.replicas == expected
