"""The costs that were measured on this machine count for it, with parameters too."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from jaxpipe.config import cluster_from, config_from
from jaxpipe.plan.cost import Part, Profile
from jaxpipe.profile.machine_speed import Speed
from jaxpipe.propose import machine_costs as module
from jaxpipe.propose.conditions import conditions_of
from jaxpipe.propose.decided_plan import decided_plan
from jaxpipe.propose.machine_costs import machine_costs
from jaxpipe.topo import Cluster, Device
from jaxpipe.topo.gpu import gpu
from tests.runtime.training import tiny_tree

PROFILE = Profile(
    device="this machine",
    flops_per_s=1e9,
    microbatch=1,
    activation_bytes=64,
    embed=Part(),
    layers=(Part(forward_s=1.0, backward_s=2.0),) * 3,
    head=Part(),
)

_MIXED = """
name = "mixed"
[[hosts]]
region = "here"
tflops = 1
[[hosts]]
region = "there"
[across_regions]
latency_ms = 1
bandwidth_gbps = 1
"""

_RELATIVE = """
name = "unlike"
[[hosts]]
region = "here"
[[hosts]]
region = "there"
relative_speed = 0.25
[across_regions]
latency_ms = 1
bandwidth_gbps = 1
"""


@pytest.fixture(name="kept")
def kept_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this machine have a kept speed, and a kept profile of any model."""
    monkeypatch.setattr(
        module, "kept_speed", lambda _: Speed(flops_per_s=1e9, copy_bytes_per_s=1e9)
    )
    monkeypatch.setattr(module, "kept_profile", lambda *_: PROFILE)


@pytest.mark.parametrize(
    ("cluster", "is_here"),
    [
        ("this-machine", True),
        ("this-machine:devices=2", True),
        ("two-region", True),
        ("mixed", False),
    ],
)
def test_a_kept_profile_counts_where_no_device_has_a_speed(
    tmp_path: Path, kept: None, cluster: str, is_here: bool
) -> None:
    if cluster == "mixed":
        (tmp_path / "mixed.toml").write_text(_MIXED)
        cluster = str(tmp_path / "mixed.toml")
    plan = {"cluster": cluster, "stages": 1, "replicas": 1}
    config = config_from(tiny_tree(tmp_path, tmp_path, plan=plan))
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    costs = list(machine_costs(config, cluster_from(config), environment=environment))
    profiles = [costed.paced.profile is not None for costed, _ in costs]
    assert profiles == ([True, False] if is_here else [False])


def test_a_host_takes_the_measured_seconds_divided_by_its_relative_speed(
    tmp_path: Path, kept: None
) -> None:
    path = tmp_path / "unlike.toml"
    path.write_text(_RELATIVE)
    plan = {"cluster": str(path), "stages": 2, "replicas": 1, "microbatch": 1, "schedule": "1f1b"}
    config = config_from(tiny_tree(tmp_path, tmp_path, plan=plan))
    cluster = cluster_from(config)
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    costs = list(machine_costs(config, cluster, environment=environment))
    assert [costed.paced.profile is not None for costed, _ in costs] == [True, False]
    for costed, lines in costs:
        conditions = conditions_of(costed)
        assert conditions.slow[1] == pytest.approx(4 * conditions.slow[0])
        assert "at the `relative_speed` of each host" in " ".join(lines)
    # The cut by cost as well, which is made before anything is measured.
    cut = decided_plan(config, cluster).pipelines[0].cut
    assert cut[0] > cut[1]


def test_a_gpu_of_this_machine_counts_by_its_data_sheet_and_says_so(tmp_path: Path) -> None:
    config = config_from(tiny_tree(tmp_path, tmp_path, plan={"cluster": "this-machine"}))
    device = Device(name="here:0", host="here", region="here", gpu=gpu("H200"))
    both = Cluster(
        name="this-machine",
        devices=(device, replace(device, name="here:1")),
        latency_s=1e-6 * (1.0 - np.eye(2)),
        bandwidth_bytes_per_s=np.where(np.eye(2), np.inf, 1e9),
    )
    ((_, lines),) = machine_costs(config, both, environment={})
    assert "data sheet of H200" in " ".join(lines)
    ((_, lines),) = machine_costs(config, replace(both, name="mine"), environment={})
    assert not lines  # there is nothing to measure here
