"""The same pipeline under `jaxpipe run --hosts`: a host dies, and a fifth one joins.

Steps are shorter than those of the other runs, and there are fewer of them.
"""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from experiments.table import Row, write_csv
from jaxpipe.chaos.harness.assertions import check_losses, check_samples, train_undisturbed
from jaxpipe.chaos.harness.emulated_hosts import HostsRun, hosts_run
from jaxpipe.chaos.harness.tiny_run import changed
from jaxpipe.chaos.host import disappear
from jaxpipe.chaos.join import join
from jaxpipe.runtime.metrics.records import METRICS_FILE, read_metrics
from jaxpipe.topo.emulate import EngineKind

_HERE = Path(__file__).parent
_MODEL = _HERE / "model.toml"
_DIES, _JOINS = 2, 4
_DIES_AFTER, _JOINS_AFTER = 6, 12
_ENDS_WITHIN_S = 1200.0
_SHORT = {"train": {"steps": 24, "batch": 64, "eval_every": 24}}
_HOSTS = ("east-0:0", "middle-0:0", "west-0:0", "north-0:0")


Sections = Mapping[str, Mapping[str, Any]]


def undisturbed(dataset: Path, changes: Sections, folder: Path) -> Path:
    """Train without links and faults, unless the folder is there; return that of the run."""
    run = folder / "run"
    return run if folder.exists() else train_undisturbed(folder, dataset, **_sections(changes))


def train_with_kills(dataset: Path, changes: Sections, reference: Path) -> str:
    """Train over slow links while a host dies and another joins; return what the run has said.

    `reference` is the folder of the undisturbed run.

    Raises:
        RunError: the run does not continue, a sample is lost or doubled, or a loss differs from an
            undisturbed run's by more than a thousandth.
    """
    tree, sections = tomllib.loads(_MODEL.read_text()), _sections(changes)
    with TemporaryDirectory() as name:
        root = Path(name)
        plan = {key: tree["plan"][key] for key in ("stages", "replicas", "microbatch", "schedule")}
        network = hosts_run(
            root / "run",
            dataset,
            cluster=str(_HERE / "far.toml"),
            kind=EngineKind.RELAY,
            hooks=("--hooks", "jaxpipe.chaos.harness.sample_log:recorder"),
            plan={**plan, "devices": list(_HOSTS)},
            checkpoint={"every": 3},
            model=sections["model"],
            train=sections["train"],
            optimizer=sections["optimizer"],
        )
        with network as run:
            try:
                _disturb(run)
            finally:
                print(run.started.stdout[-6000:], flush=True)
            check_samples(run.started.config, dataset)
            write_csv(list(_beside(run.folder(), reference)), _HERE / "results" / "kills.csv")
            differs = check_losses(run.folder(), reference)
            return f"{run.started.stdout}\nlargest relative difference of a loss: {differs:.2g}\n"


def _beside(run: Path, reference: Path) -> Iterator[Row]:
    """Yield the loss of each step of both runs."""
    ours, theirs = (read_metrics(folder / METRICS_FILE) for folder in (run, reference))
    for mine, other in zip(ours, theirs, strict=True):
        yield {"step": mine.step, "loss": f"{mine.loss:.7f}", "undisturbed": f"{other.loss:.7f}"}


def _disturb(run: HostsRun) -> None:
    """Lose a host, let another join, and wait for the end."""
    run.wait_for_steps(_DIES_AFTER)
    disappear(run, _DIES)
    run.wait_for_step_after("attempt 2 continues")
    run.wait_for_steps(_JOINS_AFTER)
    join(run, _JOINS)
    run.wait_for_step_after("attempt 3 continues")
    run.started.expect_success(run.started.wait(timeout_s=_ENDS_WITHIN_S))


def _sections(changes: Sections) -> dict[str, dict[str, Any]]:
    tree = tomllib.loads(_MODEL.read_text())
    sections = {name: tree[name] for name in ("model", "train", "optimizer")}
    return changed(changed(sections, changes), _SHORT)
