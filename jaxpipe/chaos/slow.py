"""A link falls to a tenth of its bandwidth: it is named, and nothing else happens.

Two replicas train on two hosts in namespaces (htb), each with a disk of its own, under `jaxpipe run
--hosts`; the gradients cross the link in each step. Needs root.
"""

import time
from dataclasses import replace
from ipaddress import ip_address

import numpy as np

from jaxpipe.chaos.harness.emulated_hosts import HostsRun, hosts_run, over_hosts
from jaxpipe.chaos.harness.trial import Case, Family, expect
from jaxpipe.topo.emulate import EngineKind, addresses
from jaxpipe.topo.emulate.commands import tc_batch
from jaxpipe.topo.tc import tc_commands

_CLUSTER = "homogeneous:hosts=2,delay_ms=0.1,bandwidth_gbps=0.02"
_SLOWER = 10.0
_STEPS_BEFORE = 10
_SECTIONS = {
    # Reports every two steps, of which two in a row have to be slow.
    "plan": {"stages": 1, "replicas": 2, "schedule": "1f1b", "drift_steps": 4},
    "trace": {"links_every": 2},
    "checkpoint": {"every": 20},
}


def _trial(case: Case) -> None:
    after_s = case.chance().uniform(0.0, 2.0)
    case.name = f"the link falls {after_s:.2f} s after step {_STEPS_BEFORE}"
    network = hosts_run(
        case.folder, case.dataset, cluster=_CLUSTER, kind=EngineKind.HTB, **_SECTIONS
    )
    with network as run:
        run.settle(steps=_STEPS_BEFORE, after_s=after_s)
        slow_down(run, by=_SLOWER)
        begin_s = time.monotonic()
        run.wait_until(lambda: run.said("planned were 0.02 Gbps"), what="the link is named")
        case.figures["named_s"] = time.monotonic() - begin_s
        run.finish(case)
        expect(not run.said("attempt 2"), f"it was started again: {run.started.stdout[-600:]}")


def slow_down(run: HostsRun, *, by: float, only_far: bool = False) -> None:
    """Change the rates of all links, or of those between regions, where htb shapes what is sent."""
    cluster, owner = run.emulation.cluster, run.emulation.owner
    regions = np.array([device.region for device in cluster.devices])
    is_slow = regions[:, None] != regions[None, :] if only_far else True
    bandwidth = cluster.bandwidth_bytes_per_s / np.where(is_slow, by, 1.0)
    slow = replace(cluster, bandwidth_bytes_per_s=bandwidth, alone_bytes_per_s=bandwidth)
    own = {
        host.name: ip_address(addresses.data_address(number))
        for number, host in enumerate(cluster.hosts)
    }
    commands = tc_commands(slow, own, device=addresses.DEVICE)
    for number, host in enumerate(cluster.hosts):
        classes = [each for each in commands[host.name] if each[0] == "class"]
        changes = [("class", "change", *each[2:]) for each in classes]
        tc_batch(changes, namespace=owner.namespace(number))


SLOW = Family(
    name="slow",
    does="the link between two hosts falls to a tenth of its bandwidth (namespaces, htb)",
    aim="the link is named (`named_s`); one attempt; no sample lost or doubled; losses equal to an "
    "undisturbed run's within 0.001 of them",
    num_trials=0,
    num_trials_full=20,
    trials=over_hosts(_trial, name="slow"),
)
