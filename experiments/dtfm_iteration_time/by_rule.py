"""jaxpipe's plan by rule and DT-FM with its scheduler, in every size; both are simulated.

`python -m experiments.dtfm_iteration_time.by_rule` writes only these: `results/ours.csv`, `.md` and
`.png`.
"""

from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path

from experiments.dtfm_iteration_time.ours import Comparison, compare
from experiments.dtfm_iteration_time.picture import draw_ours
from experiments.dtfm_iteration_time.planned import NUMBER
from experiments.table import Row, markdown, percent, write_csv
from jaxpipe.simulate import Constants, dtfm_constants

_RESULTS = Path(__file__).parent / "results"


def write_ours(constants: Constants, executor: Executor) -> None:
    """Simulate both on every cluster, and write tables and picture."""
    comparisons = compare(constants, executor)
    rows = [_ours_row(comparison) for comparison in comparisons]
    write_csv(rows, _RESULTS / "ours.csv", number=NUMBER)
    (_RESULTS / "ours.md").write_text(markdown(rows, number=NUMBER) + "\n")
    draw_ours(comparisons, _RESULTS / "ours.png")


def _ours_row(comparison: Comparison) -> Row:
    return {
        "cluster": comparison.cluster,
        "layers": comparison.layers,
        "batch": comparison.batch,
        "dtfm_simulated_s": comparison.dtfm_s,
        "jaxpipe_simulated_s": comparison.ours_s,
        "speedup": comparison.dtfm_s / comparison.ours_s,
        "stages": comparison.num_stages,
        **{
            f"without_{name}": percent(seconds / comparison.ours_s - 1)
            for name, seconds in comparison.without.items()
        },
    }


if __name__ == "__main__":
    with ProcessPoolExecutor() as processes:
        write_ours(dtfm_constants(), processes)
