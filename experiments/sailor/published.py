"""The published tables: costs of layers, links, prices, measured runs and scenarios."""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import log2
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

from jaxpipe.search.layout import Group, Layout, Run, Stage

PUBLISHED = Path(__file__).parent / "published"
ZONE = "us-central1-a"
"""The zone under which the tables have the links of the two measured clusters."""

_T = TypeVar("_T")

Place: TypeAlias = tuple[str, str]
"""A GPU type and a zone."""


class LayerCost(NamedTuple):
    """The measured seconds of one layer for one microbatch, and of its optimizer."""

    forward_s: float
    backward_s: float
    update_s: float


class LayerSize(NamedTuple):
    """Numbers of 4 bytes of one layer on one GPU; all but the parameters for one sample."""

    parameters: int
    output_floats: int
    input_floats: int
    kept_floats: int


class Curve(NamedTuple):
    """A bandwidth in GB/s: a polynomial of log2 of the megabytes of a message."""

    c2: float
    c1: float
    c0: float

    def seconds(self, num_bytes: float) -> float:
        """Return the seconds of a message.

        >>> Curve(0.0, 0.0, 2.0).seconds(4e9)
        2.0
        """
        scale = log2(num_bytes / 1e6)
        return num_bytes / ((self.c2 * scale * scale + self.c1 * scale + self.c0) * 1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The measured layers of a model: `costs[gpu, microbatch, tensor]`, `sizes[tensor]`."""

    name: str
    costs: dict[tuple[str, int, int], tuple[LayerCost, ...]]
    sizes: dict[int, tuple[LayerSize, ...]]

    @property
    def num_layers(self) -> int:
        """The number of layers of the profile: embedding, layers, head."""
        return len(self.sizes[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A question to a planner: GPUs by type and zone, and what counts."""

    name: str
    model: str
    batch: int
    gpus: dict[Place, int]
    min_steps_per_s: float | None = None
    max_dollars_per_step: float | None = None


def table(name: str) -> list[dict[str, str]]:
    """Return the rows of a published table."""
    with (PUBLISHED / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@cache
def model(name: str) -> Model:
    """Return a model by its name in the tables."""
    sizes: dict[int, dict[int, LayerSize]] = {}
    for row in table("layer_sizes"):
        if row["model"] == name:
            size = LayerSize(*(int(row[field]) for field in LayerSize._fields))
            sizes.setdefault(int(row["tensor"]), {}).update(dict.fromkeys(_layers(row), size))
    costs: dict[str, dict[tuple[str, int, int], dict[int, LayerCost]]] = {}
    for row in table("layer_seconds"):
        if row["model"] == name:
            key = (row["gpu"], int(row["microbatch"]), int(row["tensor"]))
            cost = LayerCost(*(float(row[field]) for field in LayerCost._fields))
            part = costs.setdefault(row["source"], {}).setdefault(key, {})
            part.update(dict.fromkeys(_layers(row), cost))
    # The planner's own table fills the gaps of the simulator's.
    found = costs.get("planner", {}) | costs.get("simulator", {})
    return Model(
        name=name,
        costs={key: _in_order(layers) for key, layers in found.items()},
        sizes={tensor: _in_order(layers) for tensor, layers in sizes.items()},
    )


@cache
def links() -> dict[tuple[Place, int, Place, int], Curve]:
    """Return the links between nodes, by place and streams of source and destination."""
    return {
        (
            (row["source_gpu"], row["source_zone"]),
            int(row["source_streams"]),
            (row["destination_gpu"], row["destination_zone"]),
            int(row["destination_streams"]),
        ): _curve(row)
        for row in table("links_between_nodes")
    }


@cache
def gpu_table() -> dict[str, dict[str, str]]:
    """Return the row of each GPU type: GPUs of a node, GiB, dollars."""
    return {row["gpu"]: row for row in table("gpus")}


@cache
def transfer_prices() -> dict[tuple[str, str], float]:
    """Return the dollars for a byte from zone to zone."""
    return {
        (row["source_zone"], row["destination_zone"]): float(row["dollars_per_gb"]) / 1e9
        for row in table("transfer_dollars_per_gb")
    }


@cache
def scenarios() -> dict[str, Scenario]:
    """Return the scenarios of the planners."""
    found = json.loads((PUBLISHED / "scenarios.json").read_text())["scenarios"]
    return {
        each["name"]: Scenario(
            name=each["name"],
            model=each["model"],
            batch=each["batch"],
            gpus={(gpu["gpu"], gpu["zone"]): gpu["count"] for gpu in each["gpus"]},
            min_steps_per_s=each.get("min_steps_per_s"),
            max_dollars_per_step=each.get("max_dollars_per_step"),
        )
        for each in found
    }


class Judged(NamedTuple):
    """A plan of another planner, and the seconds that Sailor's simulator gives it."""

    scenario: str
    planner: str
    step_s: float
    layout: Layout


def judged_plans() -> Iterator[Judged]:
    """Return the plans of all planners that have one partition for all replicas."""
    for line in (PUBLISHED / "judged_plans.jsonl").read_text().splitlines():
        each = json.loads(line)
        layout = Layout(
            cut=tuple(each["cut"]),
            stages=tuple(
                tuple(Run(_group(name), count) for name, count in stage) for stage in each["stages"]
            ),
            microbatch=each["microbatch"],
        )
        yield Judged(each["scenario"], each["planner"], each["step_s"], layout)


def measured_layout(row: dict[str, str]) -> Layout:
    """Return the layout of a row in the form of `validation.csv`.

    >>> row = {"cut": "12 14", "placement": "2xGH-96:4 | 1xGH-96:4+1xGH-96:2", "microbatch": "2"}
    >>> str(measured_layout(row)).split(" | ")[1]
    '14L 1xGH-96:4@us-central1-a+1xGH-96:2@us-central1-a'
    """
    return Layout(
        cut=tuple(int(layers) for layers in row["cut"].split()),
        stages=tuple(_stage(text) for text in row["placement"].split("|")),
        microbatch=int(row["microbatch"]),
    )


def layout_of(text: str) -> Layout:
    """Return the layout of a column of `results/planned.csv`.

    >>> text = "microbatch 8: 12L 2xA100-40:4@us-central1-a | 14L 1xA100-40:4@us-west1-b+1xV100:2@b"
    >>> str(layout_of(text)) == text
    True
    """
    microbatch, _, stages = text.removeprefix("microbatch ").partition(": ")
    parts = [each.partition("L ") for each in stages.split(" | ")]
    return Layout(
        cut=tuple(int(layers) for layers, _, _ in parts),
        stages=tuple(_stage(groups) for _, _, groups in parts),
        microbatch=int(microbatch),
    )


def _stage(text: str) -> Stage:
    runs = []
    for part in text.strip().split("+"):
        count, _, group = part.partition("x")
        gpu, _, where = group.partition(":")
        tensor, _, zone = where.partition("@")
        runs.append(Run(Group(gpu, zone or ZONE, int(tensor)), int(count)))
    return tuple(runs)


def _group(name: str) -> Group:
    place, _, tensor = name.partition(":")
    gpu, _, zone = place.partition("@")
    return Group(gpu, zone, int(tensor))


def _layers(row: dict[str, str]) -> range:
    return range(int(row["first_layer"]), int(row["last_layer"]) + 1)


def _in_order(layers: dict[int, _T]) -> tuple[_T, ...]:
    return tuple(layers[number] for number in range(len(layers)))


def _curve(row: dict[str, str]) -> Curve:
    return Curve(*(float(row[field]) for field in Curve._fields))
