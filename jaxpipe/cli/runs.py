"""`jaxpipe runs`: lists runs, and draws their losses and timelines in one picture."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.markup import escape
from rich.table import Table

from jaxpipe.run.folder.output_files import check_picture
from jaxpipe.run.terminal.console import console, next_line, print_table

if TYPE_CHECKING:  # it imports traces, which `--help` can do without
    from jaxpipe.run.folder.list_runs import RunSummary


def runs(
    folders: tyro.conf.Positional[
        Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FOLDER ...")]
    ] = (Path("runs"),),
    *,
    png: Path | None = None,
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
    newest: Annotated[str | None, tyro.conf.arg(metavar="PLACE")] = None,
) -> int:
    """List runs with model, plan, steps, loss and state; `--png` draws them in one picture.

    Args:
        folders: runs, or folders that hold runs at any depth.
        png: a PNG, SVG or PDF to draw: the losses of all these runs over each other, and below
            them the last traced step of each, if they are at most four.
        json_: print one JSON object per run and nothing else.
        newest: print the step of the newest checkpoint in the folder of a run, or behind the URL of
            `checkpoint.folder`, and nothing else; nothing at all if there is none.
    """
    if newest is not None:
        return _print_newest(newest)
    from jaxpipe.run.folder.list_runs import runs_in
    from jaxpipe.run.folder.runs_picture import draw_runs

    check_picture("--png", png)
    summaries = [run for folder in folders for run in runs_in(folder)]
    if json_:
        for run in summaries:
            print(json.dumps({**_row(run), "truth": run.truth}))
    elif not summaries:
        console.print(f"no runs in {', '.join(map(str, folders))}", markup=False)
    else:
        print_table(_table(summaries))
    if png is not None:
        draw_runs(summaries, png)
        if not json_:
            console.print(f"\npicture -> {png}", markup=False)
    if summaries and not json_:
        console.print(f"\n{next_line('trace', summaries[-1].folder)}", markup=False)
    return 0


def _print_newest(text: str) -> int:
    from jaxpipe.runtime.checkpoint import committed
    from jaxpipe.runtime.storage.object_folder import folder_named

    step = max(committed(folder_named(text, setting="--newest")), default=None)
    if step is not None:
        print(step)
    return 0


def _row(run: "RunSummary") -> dict[str, str]:
    return {
        "run": str(run.folder),
        "model": run.model,
        "plan": run.plan,
        "steps": f"{run.last_step}/{run.num_steps}",
        "loss": f"{run.losses[-1][1]:.3f}" if run.losses else "none",
        "state": run.state,
    }


def _table(summaries: "list[RunSummary]") -> Table:
    rows = [_row(run) for run in summaries]
    table = Table(*rows[0], box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(escape, row.values()))
    return table
