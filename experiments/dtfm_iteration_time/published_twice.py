"""What the published times of Megatron's layouts say of each other, without a model.

`python -m experiments.dtfm_iteration_time.published_twice` reads the stored `iteration.csv` and
`layouts.csv`, and writes `results/published_twice.md`. Two publications have the same layouts of
the same model: case 1 (8 replicas on eight p3.16xlarge) and the study (6 on six). The study has
most layouts with recomputation and without, which cannot change a step by more than its FLOP, 4/3.
"""

from pathlib import Path

import numpy as np

from experiments.table import Row, markdown, read_csv

_RESULTS = Path(__file__).parent / "results"
_STAGES = {"megatron-t8": 1, "megatron-p2t4": 2, "megatron-p4t2": 4, "megatron-p8": 8}
_CASE_1_MICROBATCHES, _STUDY_MICROBATCHES = 128, 42
_MOST_RATIO = 1.5
"""Of a step with recomputation over one without; FLOP allow 4/3."""


def main() -> None:
    """Write and print the tables."""
    layouts = read_csv(_RESULTS / "layouts.csv")
    pairs = recomputed_pairs(layouts)
    parts = {
        "ms of a microbatch, 24 layers, fp16, recomputation, one sample": _by_publication(layouts),
        "The study, six hosts, fp16: a step with recomputation over one without": pairs,
        "Errors of the study, six hosts, fp16, without doubtful runs": _errors(layouts, pairs),
    }
    text = "\n\n".join(f"## {title}\n\n{markdown(rows)}" for title, rows in parts.items())
    (_RESULTS / "published_twice.md").write_text(f"{text}\n")
    print(text)


def _by_publication(layouts: list[dict[str, str]]) -> list[Row]:
    """Return a row for each layout; the time of a step goes over its microbatches and its fill."""
    case_1 = {
        row["system"].replace("_", "-"): row
        for row in read_csv(_RESULTS / "iteration.csv")
        if (row["cluster"], row["layers"], row["batch"]) == ("case1-datacenter", "24", "1024")
    }
    study = {row["system"]: row for row in _fp16(layouts) if _key(row)[1:] == ("1", "yes")}
    return [
        {"layout": layout.removeprefix("megatron-").upper()}
        | {
            f"{name}, {words}": f"{1e3 * float(rows[layout][column]) / (number + stages - 1):.0f}"
            for name, rows, number in (
                ("case 1", case_1, _CASE_1_MICROBATCHES),
                ("study", study, _STUDY_MICROBATCHES),
            )
            for words, column in (("published", "published_s"), ("simulated", "simulated_s"))
        }
        for layout, stages in _STAGES.items()
    ]


def recomputed_pairs(layouts: list[dict[str, str]]) -> list[Row]:
    """Return a row for each layout and microbatch that was published both ways."""
    runs = {_key(row): row for row in _fp16(layouts) if _has_seconds(row)}
    rows: list[Row] = []
    for (layout, microbatch, recompute), run in runs.items():
        other = runs.get((layout, microbatch, "no"))
        if recompute == "no" or other is None:
            continue
        rows.append(
            {"layout": layout, "microbatch": microbatch}
            | {
                words: f"{float(run[column]) / float(other[column]):.2f}"
                for words, column in (("published", "published_s"), ("simulated", "simulated_s"))
            }
        )
    return rows


def _errors(layouts: list[dict[str, str]], pairs: list[Row]) -> list[Row]:
    odd = {
        (row["layout"], row["microbatch"]) for row in pairs if float(row["published"]) > _MOST_RATIO
    }
    runs = [row for row in _fp16(layouts) if _has_seconds(row) and not row["doubtful"]]
    plausible = [row for row in runs if _key(row)[:2] not in odd]
    groups = {
        "all": runs,
        f"without pairs of more than {_MOST_RATIO}": plausible,
        "... and without P4T2": [row for row in plausible if row["system"] != "megatron-p4t2"],
        "... P4T2 alone": [row for row in plausible if row["system"] == "megatron-p4t2"],
    }
    rows: list[Row] = []
    for words, group in groups.items():
        errors = np.array(
            [abs(float(row["simulated_s"]) / float(row["published_s"]) - 1) for row in group]
        )
        rows.append(
            {
                "runs": words,
                "number": len(errors),
                "median error": f"{100 * np.median(errors):.1f} %",
                "worst": f"{100 * errors.max():.1f} %",
            }
        )
    return rows


def _fp16(layouts: list[dict[str, str]]) -> list[dict[str, str]]:
    return [row for row in layouts if (row["hosts"], row["precision"]) == ("6", "fp16")]


def _key(row: dict[str, str]) -> tuple[str, str, str]:
    return row["system"], row["microbatch"], row["recompute"]


def _has_seconds(row: dict[str, str]) -> bool:
    return row["published_s"] != "out of memory"


if __name__ == "__main__":
    main()
