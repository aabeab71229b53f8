"""Measured runs next to predictions: ours, without a cluster, and those of other simulators."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

from experiments.sailor.predict import Constants, fit, measured_rows, predict
from experiments.sailor.published import table
from experiments.table import Row

_QUANTITIES = ("seconds", "memory_bytes")


def is_usable(row: dict[str, str], quantity: str) -> bool:
    """Return whether a measured number counts, after the notes of the published table."""
    doubtful = "unusable" if quantity == "seconds" else "memory is below"
    return doubtful not in row["note"] and "unusable" not in row["note"]


def measured_table() -> list[Row]:
    """Return a row for each measured run: theirs, ours, and ours with its cluster left out."""
    rows = measured_rows()
    constants = fit(rows)
    left_out = {
        cluster: fit([row for row in rows if row["cluster"] != cluster])
        for cluster in sorted({row["cluster"] for row in rows})
    }
    return [_compared(row, constants, left_out[row["cluster"]]) for row in rows]


def _compared(row: dict[str, str], constants: Constants, without: Constants) -> Row:
    ours, unseen = predict(row, constants), predict(row, without)
    seconds, num_bytes = float(row["seconds"]), float(row["memory_bytes"])
    return {
        "id": row["id"],
        "cluster": row["cluster"],
        "measured_s": seconds,
        "ours_s": ours.seconds,
        "error": ours.seconds / seconds - 1,
        "error_left_out": unseen.seconds / seconds - 1,
        "measured_gb": num_bytes / 1e9,
        "ours_gb": ours.memory_bytes / 1e9,
        "memory_error": ours.memory_bytes / num_bytes - 1,
        "memory_error_left_out": unseen.memory_bytes / num_bytes - 1,
        "counts": _counts(row),
    }


def _counts(row: dict[str, str]) -> str:
    return " ".join(quantity for quantity in _QUANTITIES if is_usable(row, quantity)) or "nothing"


def simulator_table(ours: Sequence[Row]) -> list[Row]:
    """Return the errors of each simulator over the measured runs that count."""
    errors: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    measured = {row["id"]: row for row in measured_rows()}
    for each in table("simulator_estimates"):
        row, quantity = measured[each["id"]], each["what"]
        if is_usable(row, quantity):
            error = float(each["estimated"]) / float(row[quantity]) - 1
            for cluster in (row["cluster"], "all"):
                errors[each["simulator"], quantity, cluster].append(error)
    for each in ours:
        for name, seconds, memory in (
            ("jaxpipe", "error", "memory_error"),
            ("jaxpipe, cluster left out", "error_left_out", "memory_error_left_out"),
        ):
            for quantity, column in (("seconds", seconds), ("memory_bytes", memory)):
                if quantity in str(each["counts"]).split():
                    for cluster in (str(each["cluster"]), "all"):
                        errors[name, quantity, cluster].append(float(each[column]))
    return [
        {
            "simulator": simulator,
            "what": quantity,
            "cluster": cluster,
            "runs": len(found),
            "median": median(map(abs, found)),
            "mean": sum(map(abs, found)) / len(found),
            "largest": max(found, key=abs),
        }
        for (simulator, quantity, cluster), found in _in_order(errors)
    ]


def _in_order(
    errors: dict[tuple[str, str, str], list[float]],
) -> Iterable[tuple[tuple[str, str, str], list[float]]]:
    """Return seconds before bytes, all runs before the clusters, small errors first."""
    clusters = ("all", "clariden", "mit")

    def rank(item: tuple[tuple[str, str, str], list[float]]) -> tuple[bool, int, float]:
        (_, quantity, cluster), found = item
        size = median(map(abs, found))
        return quantity != "seconds", clusters.index(cluster), size

    return sorted(errors.items(), key=rank)
