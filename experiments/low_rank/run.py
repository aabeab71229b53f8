"""Train with boundaries of low rank: `python -m experiments.low_rank.run [MODEL[/RATIO] ...]`.

Each run adds a row to `results/runs.csv`, or to the file of `--runs`; what is there is not run
again. `results/loss.csv` has the runs beside the uncompressed ones, `results/summary.md` their
means.
"""

import argparse
import sysconfig
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import jax

from experiments.codecs.curve import run_case
from experiments.progress import counted
from experiments.table import Row, append_csv, grouped, markdown, numbers, read_csv, write_csv
from jaxpipe.config import load_config
from jaxpipe.models import num_parameters
from jaxpipe.runtime.data import Source, prepare

_HERE = Path(__file__).parent
_RESULTS = _HERE / "results"
_DATA = Path("data")
_NONE = "none"


@dataclass(frozen=True, slots=True)
class Run:
    """A model, its boundary ("none" or the layers before each), width over rank, and seed."""

    model: str
    boundary: str
    ratio: int
    seed: int


def main() -> None:
    """Make the runs of the named models and ratios, by default of all, that have no result yet."""
    parser = argparse.ArgumentParser(description="Train with boundaries of low rank.")
    parser.add_argument("names", nargs="*", metavar="MODEL[/RATIO]", help="such as 10M or 10M/64")
    parser.add_argument("--runs", type=Path, default=_RESULTS / "runs.csv", help="a CSV file")
    options = parser.parse_args()
    cases = tomllib.loads((_HERE / "cases.toml").read_text())
    known = _read(options.runs)
    runs = [
        run
        for run in _runs(cases)
        if run not in known and (not options.names or _names(run) & {*options.names})
    ]
    for data in {cases["models"][run.model]["data"] for run in runs}:
        prepare_data(data)
    with TemporaryDirectory() as cache:
        jax.config.update("jax_compilation_cache_dir", cache)  # seeds run the same programs
        for run in counted(runs, "runs"):
            _train(cases, run, options.runs)
    if options.runs == _RESULTS / "runs.csv":
        report(cases, _read(options.runs))


def prepare_data(name: str) -> None:
    """Prepare a text unless it is there: Python's manual, or the programs of its library."""
    folder = _DATA / name
    if folder.exists():
        return
    if name == "topics":
        prepare(Source(), folder)
        return
    with TemporaryDirectory() as texts:
        text = Path(texts) / f"{name}.txt"
        # Modules without packages: `experiments.finetune.texts.library` has 2.6 times as much.
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        text.write_text("\n".join(file.read_text(errors="replace") for file in files))
        prepare(Source(path=text), folder)


def report(cases: Mapping[str, Any], losses: Mapping[Run, float]) -> None:
    """Write the tables of all runs whose uncompressed run is there, too."""
    rows = [
        _row(cases, run, loss, plain)
        for run, loss in sorted(losses.items(), key=lambda item: astuple(item[0]))
        if run.boundary != _NONE
        and (plain := losses.get(Run(run.model, _NONE, 1, run.seed))) is not None
    ]
    write_csv(rows, _RESULTS / "loss.csv")
    groups = grouped(rows, "parameters", "boundary", "bytes_ratio")
    table = markdown(
        [
            _summary(group, groups[parameters, boundary, "1"])
            for (parameters, boundary, _), group in groups.items()
            if (parameters, boundary, "1") in groups
        ]
    )
    (_RESULTS / "summary.md").write_text(table + "\n")
    print(table)


def _train(cases: Mapping[str, Any], run: Run, path: Path) -> None:
    """Train one run, and append its held-out loss to a file."""
    model, settings = cases["models"][run.model], _settings(cases, run.model)
    width = load_config(cases["config"], settings).model.dim
    bottlenecks = [
        [after, width // run.ratio] for after in model["boundaries"].get(run.boundary, ())
    ]
    curve = run_case(
        {
            "name": run.boundary,
            "settings": [f"model.bottlenecks={bottlenecks}", f"run.seed={run.seed}"],
        },
        config=cases["config"],
        settings=settings,
    )
    loss = curve.held_out[-1][1]
    append_csv({**asdict(run), "loss": repr(loss)}, path)


def _row(cases: Mapping[str, Any], run: Run, loss: float, plain: float) -> Row:
    model = load_config(cases["config"], _settings(cases, run.model)).model
    return {
        "parameters": num_parameters(model, layers=model.num_layers, embed=True, head=True),
        "boundary": run.boundary,
        "rank": model.dim // run.ratio,
        "seed": run.seed,
        "bytes_ratio": run.ratio,
        "loss": f"{loss:.4f}",
        "uncompressed_loss": f"{plain:.4f}",
    }


def _summary(rows: Sequence[Row], of_width: Sequence[Row]) -> Row:
    """Return the means of some seeds, beside those of the same seeds with the whole width."""
    losses, plain = numbers(rows, "loss"), numbers(rows, "uncompressed_loss")
    seeds = {row["seed"] for row in rows}
    widest = numbers([row for row in of_width if row["seed"] in seeds], "loss")
    return {
        "parameters": f"{numbers(rows, 'parameters')[0] / 1e6:.2f} M",
        "after layers": rows[0]["boundary"],
        "rank": rows[0]["rank"],
        "fewer bytes": f"{rows[0]['bytes_ratio']} x",
        "held-out loss": f"{mean(losses):.3f}",
        "lowest, highest": f"{min(losses):.3f}, {max(losses):.3f}",
        "to uncompressed": f"{mean(losses) / mean(plain) - 1:+.1%}",
        "to all numbers": f"{mean(losses) / mean(widest) - 1:+.1%}",
        "seeds": len(rows),
    }


def _settings(cases: Mapping[str, Any], model: str) -> list[str]:
    given = cases["models"][model]
    return [*cases["settings"], *given["settings"], f"data.folder={_DATA / given['data']}"]


def _names(run: Run) -> set[str]:
    """Return the words of the command line that mean this run."""
    ratio = _NONE if run.boundary == _NONE else run.ratio
    return {run.model, f"{run.model}/{ratio}"}


def _runs(cases: Mapping[str, Any]) -> Iterator[Run]:
    """Yield all runs, those of the first seed first."""
    for seed in cases["seeds"]:
        for name, model in cases["models"].items():
            yield Run(name, _NONE, 1, seed)
            for boundary in model["boundaries"]:
                for ratio in model["ratios"]:
                    yield Run(name, boundary, ratio, seed)


def _read(path: Path) -> dict[Run, float]:
    rows = read_csv(path) if path.exists() else []
    return {
        Run(row["model"], row["boundary"], int(row["ratio"]), int(row["seed"])): float(row["loss"])
        for row in rows
    }


if __name__ == "__main__":
    main()
