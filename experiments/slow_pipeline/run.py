"""Train four stages over slow links and over a local network, as root.

    python -m experiments.slow_pipeline.run near [BOUNDARY ...]      speed on a local network
    python -m experiments.slow_pipeline.run far [BOUNDARY ...]       speed over the slow links
    python -m experiments.slow_pipeline.run curves [BOUNDARY ...]    losses over the slow links
    python -m experiments.slow_pipeline.run kills                    a host dies, another joins

Ranks are processes in network namespaces (`jaxpipe emulate`). Texts are those of CPython's standard
library. `near` and `far` add a row to `results/speed.csv` for each run, `curves` writes held-out
losses to `results/curves.csv` and draws them, `kills` writes what the run has said to
`results/kills.txt`.
"""

import os
import shutil
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from matplotlib.figure import Figure

from experiments.finetune.command import jaxpipe, settings
from experiments.finetune.texts import library
from experiments.slow_pipeline.kills import Sections, train_with_kills, undisturbed
from experiments.table import Row, append_csv, grouped, read_csv, write_csv
from jaxpipe.runtime.data import Source, prepare
from jaxpipe.runtime.metrics.records import StepMetrics, read_metrics

_HERE = Path(__file__).parent
_RESULTS, _RUNS = _HERE / "results", Path("runs/slow_pipeline")
_DATA = _RUNS / "data"
_KILLED = "rank 8"
_WARM = 5
"""Steps that are not counted: compiling, and the first of each kind."""


def main(what: str, *names: str) -> None:
    """Train with the named boundaries, by default with all."""
    cases = tomllib.loads((_HERE / "cases.toml").read_text())
    boundaries = {name: cases["boundaries"][name] for name in names or cases["boundaries"]}
    _prepare_data()
    _RESULTS.mkdir(exist_ok=True)
    if what == "kills":
        data, sections = _DATA.absolute(), cases["boundaries"][_KILLED]
        reference = undisturbed(data, sections, (_RUNS / "undisturbed").absolute())
        said = train_with_kills(data, sections, reference)
        (_RESULTS / "kills.txt").write_text(said)
    elif what == "curves":
        for name, sections in boundaries.items():
            curve(name, sections, cases["curves"])
        draw(read_csv(_RESULTS / "curves.csv"), _RESULTS / "curves.png")
    else:
        for name, sections in boundaries.items():
            speed(name, what, sections, cases["speed"])


def speed(name: str, network: str, sections: Sections, changes: Sequence[str]) -> None:
    """Train for some steps over a network, and add the row of its speed."""
    metrics = train(network, sections, changes)[_WARM:]
    # A step that measures a held-out loss takes longer.
    step_s = [step.step_s for step in metrics if step.eval_loss is None]
    row = {
        "boundary": name,
        "network": network,
        "step_s": f"{median(step_s):.3f}",
        "lowest_s": f"{min(step_s):.3f}",
        "highest_s": f"{max(step_s):.3f}",
        "sent_mb": f"{median(step.sent_bytes for step in metrics) / 1e6:.3f}",
        "load": f"{os.getloadavg()[0]:.1f}",
    }
    append_csv(row, _RESULTS / "speed.csv")


def curve(name: str, sections: Sections, changes: Sequence[str]) -> None:
    """Train over the slow links, and write the held-out losses."""
    metrics = train("far", sections, changes)
    rows = [
        {"boundary": name, "step": step.step, "loss": f"{step.eval_loss:.4f}"}
        for step in metrics
        if step.eval_loss is not None
    ]
    file, known = _RESULTS / "curves.csv", []
    if file.exists():
        known = [row for row in read_csv(file) if row["boundary"] != name]
    write_csv([*known, *rows], file)


def train(network: str, sections: Sections, changes: Sequence[str]) -> list[StepMetrics]:
    """Train over the emulated links of a network, and return what each step has measured."""
    cluster, folder = _HERE / f"{network}.toml", _RUNS / "run"
    if folder.exists():
        shutil.rmtree(folder)
    of_sections = (
        f"{section}.{key}={value}"
        for section, fields in sections.items()
        for key, value in fields.items()
    )
    places = (f"plan.cluster={cluster}", f"run.folder={folder}")
    words = (_HERE / "model.toml", *settings(*of_sections, *changes, *places))
    jaxpipe(
        *("emulate", cluster, "--engine", "relay", "--"),
        *(sys.executable, "-m", "jaxpipe", "train", *words),
    )
    return read_metrics(folder / "metrics.jsonl")


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw the held-out loss of all boundaries over the steps."""
    figure = Figure(figsize=(7, 4), dpi=100, layout="constrained")
    axes = figure.subplots()
    for (name,), losses in grouped(rows, "boundary").items():
        steps = [int(row["step"]) for row in losses]
        axes.plot(steps, [float(row["loss"]) for row in losses], "o-", label=name, markersize=3)
    axes.set_xlabel("step")
    axes.set_ylabel("held-out loss, nats per token")
    axes.legend(frameon=False)
    figure.savefig(path)


def _prepare_data() -> None:
    """Write the dataset, unless it is there."""
    if not _DATA.exists():
        with TemporaryDirectory() as name:
            file = Path(name) / "library.txt"
            file.write_text("\n".join(library()), encoding="utf-8")
            prepare(Source(path=file), _DATA)


if __name__ == "__main__":
    main(*sys.argv[1:])
