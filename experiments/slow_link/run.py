"""Slow a link down while a run trains over it, as root: `python -m experiments.slow_link.run`.

Trains over emulated links; after some steps the link between the first two hosts drops to a tenth,
both ways. Then continues with the plan that the run has proposed, over the links as it has measured
them. Writes `results/steps.csv`, `results/links.csv`, `results/said.txt` and
`results/new_plan.toml`.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from statistics import median

from experiments.table import Row, markdown, write_csv
from jaxpipe import topo
from jaxpipe.run.drift.new_plan import CLUSTER_FILE, PLAN_FILE, replan_settings
from jaxpipe.runtime.data import Source, prepare
from jaxpipe.runtime.metrics.records import StepMetrics, read_metrics
from jaxpipe.topo.emulate import addresses
from jaxpipe.topo.emulate.commands import tc_batch
from jaxpipe.topo.emulate.mpi import MARK
from jaxpipe.topo.tc import tc_commands

_HERE = Path(__file__).parent
_MODEL, _CLUSTER = _HERE / "model.toml", _HERE / "cluster.toml"
_PYTHON = (sys.executable, "-P", "-m")
_DROP_AFTER, _SLOWDOWN = 12, 10.0
_FIRST_STEPS = 2
_MORE_STEPS = 12
_TIMEOUT_S = 1500.0


def main() -> None:
    """Run outside of the emulation, or, with a folder as argument, inside of it."""
    if len(sys.argv) > 1:
        train_and_slow_down(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(Source(), folder / "data")
        inside = (sys.executable, "-m", "experiments.slow_link.run", str(folder))
        said = emulate(str(_CLUSTER), inside)
        before = read_metrics(folder / "run" / "metrics.jsonl")
        train = (*_train(folder, steps=before[-1].step + _MORE_STEPS), "--resume")
        sets = [word for each in replan_settings(folder / "run") for word in ("--set", each)]
        drifted, plan = folder / "run" / CLUSTER_FILE, folder / "run" / PLAN_FILE
        emulate(str(drifted), (*train, *sets), "--plan", str(plan))
        after = read_metrics(folder / "run" / "metrics.jsonl")[len(before) :]
        new_plan = plan.read_text()
    rows = [
        _row("as planned", before[_FIRST_STEPS:_DROP_AFTER]),
        _row("link at a tenth", before[_DROP_AFTER + _FIRST_STEPS :]),
        _row("new plan, link at a tenth", after[_FIRST_STEPS:]),
    ]
    results = _HERE / "results"
    results.mkdir(exist_ok=True)
    write_csv(rows, results / "steps.csv")
    write_csv(_link_rows((*before, *after)), results / "links.csv")
    (results / "said.txt").write_text(said)
    (results / "new_plan.toml").write_text(new_plan)
    print(markdown(rows))


def train_and_slow_down(folder: Path) -> None:
    """Train, and slow the link between the first two hosts down after some steps.

    Raises:
        RuntimeError: the run did not come so far, or failed.
    """
    training = subprocess.Popen(_train(folder, steps=0))
    metrics, until_s = folder / "run" / "metrics.jsonl", time.monotonic() + _TIMEOUT_S
    while len(read_metrics(metrics)) < _DROP_AFTER:
        if training.poll() is not None or time.monotonic() > until_s:
            training.kill()
            raise RuntimeError(f"the run ended before step {_DROP_AFTER}")
        time.sleep(0.05)
    _slow_down()
    if training.wait(timeout=_TIMEOUT_S):
        raise RuntimeError(f"the run ended with {training.returncode}")


def _slow_down() -> None:
    """Change the rate of the classes between the first two hosts, in their namespaces."""
    cluster = topo.load(str(_CLUSTER))
    bandwidth = cluster.bandwidth_bytes_per_s.copy()
    bandwidth[0, 1] /= _SLOWDOWN
    bandwidth[1, 0] /= _SLOWDOWN
    slow = replace(cluster, bandwidth_bytes_per_s=bandwidth, alone_bytes_per_s=bandwidth)
    own = {
        host.name: ip_address(addresses.data_address(number))
        for number, host in enumerate(cluster.hosts)
    }
    commands = tc_commands(slow, own, device=addresses.DEVICE)
    for number, host in enumerate(cluster.hosts):
        changed = [
            ("class", "change", *command[2:])
            for command in commands[host.name]
            if command[0] == "class"
        ]
        tc_batch(changed, namespace=f"{os.environ[MARK]}-{number}")


def _train(folder: Path, *, steps: int) -> tuple[str, ...]:
    changes = [f"run.folder={folder}/run", f"data.folder={folder}/data"]
    changes += [f"train.steps={steps}"] if steps else []
    sets = [word for change in changes for word in ("--set", change)]
    return (*_PYTHON, "jaxpipe", "train", str(_MODEL), *sets)


def emulate(cluster: str, command: Sequence[str], *options: str) -> str:
    """Run a command over the emulated links of a cluster; return its output.

    Raises:
        RuntimeError: it failed.
    """
    done = subprocess.run(
        (*_PYTHON, "jaxpipe", "emulate", cluster, "--engine", "htb", *options, "--", *command),
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path.cwd())},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        timeout=2 * _TIMEOUT_S,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout}")
    return done.stdout


def _row(phase: str, metrics: Sequence[StepMetrics]) -> Row:
    steps_s = [each.step_s for each in metrics]
    return {
        "phase": phase,
        "steps": f"{metrics[0].step}-{metrics[-1].step}",
        "step_s": f"{median(steps_s):.3f}",
        "lowest_s": f"{min(steps_s):.3f}",
        "highest_s": f"{max(steps_s):.3f}",
        "load": f"{os.getloadavg()[0]:.0f}",
    }


def _link_rows(metrics: Sequence[StepMetrics]) -> list[Row]:
    return [
        {
            "steps": f"{each.links.first_step}-{each.step}",
            "link": f"{link.source} -> {link.to}",
            "bytes": link.num_bytes,
            "seconds": f"{link.seconds:.4f}",
            "goodput_mb_per_s": f"{link.goodput_bytes_per_s / 1e6:.3f}",
            "of_planned": f"{link.efficiency:.3f}",
        }
        for each in metrics
        if each.links is not None
        for link in each.links.regions
        if link.traffic == "activations" and link.goodput_bytes_per_s and link.efficiency
    ]


if __name__ == "__main__":
    main()
