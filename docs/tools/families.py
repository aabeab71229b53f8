"""The families of models: what is read of each, and the logits that were measured."""

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

from docs.tools.fields import table
from jaxpipe.interchange.architecture_record import Architecture
from jaxpipe.interchange.architectures import ARCHITECTURES

RESULTS = "experiments/weights/results"
VERSIONS = ("4", "5")
"""Of transformers, with a file of results each."""
OTHERS = (("llama-cpp", "llama-cpp-python"), ("vllm", "vllm"))
"""Other readers of merged exports: the file of results, and the package."""
_GPT2 = ("gpt2", "GPT2LMHeadModel")


def families_reference(root: Path) -> str:
    """Return a table with a row for each architecture that is imported."""
    measured = {version: dict(_measured(root, version)) for version in VERSIONS}
    read = {name: _rows(root / RESULTS / f"exports-{name}.csv") for name, _ in OTHERS}
    head = ("`model_type`", "import", "stages", "LoRA", "export")
    rows = [
        (
            f"`{kind}`",
            f"`{model}`",
            _stages(ARCHITECTURES.get(kind)),
            _adapters(ARCHITECTURES.get(kind)),
            "model, adapters",
            *(measured[version].get(kind, "not measured") for version in VERSIONS),
            *(_by_other(read[name].get(kind), package) for name, package in OTHERS),
        )
        for kind, model in (*((k, record.model) for k, record in ARCHITECTURES.items()), _GPT2)
    ]
    return table((*head, *(f"transformers {v}" for v in VERSIONS), "llama.cpp", "vLLM"), rows)


def _stages(record: Architecture | None) -> str:
    """Return between what a model is cut."""
    is_grouped = record is not None and record.groups is not None
    return "any layers; between groups, where layers are groups" if is_grouped else "any layers"


def _adapters(record: Architecture | None) -> str:
    if record is not None and record.experts:
        return "products, of each expert its own"
    return "products, some as one tensor" if record is not None and record.is_fused else "products"


def _by_other(row: Mapping[str, str] | None, package: str) -> str:
    if row is None or row["error"]:
        return "not measured"
    version = row[package.replace("-", "_")]
    return f"{package} {version}: merged {_number(row['merged'])}"


def _measured(root: Path, version: str) -> Iterator[tuple[str, str]]:
    """Yield architectures with the largest differences of logits, as parts of the largest logit."""
    imports, exports = (
        _rows(root / RESULTS / f"{name}-{version}.csv") for name in ("transformers", "exports")
    )
    for kind, row in imports.items():
        parts = [f"{row['transformers']}: import {_number(row['largest_difference'])}"]
        export = exports.get(kind)
        if export is None:
            parts.append("exports not measured")
        else:
            parts += [f"{part} {_number(export[part])}" for part in ("merged", "adapter")]
        yield kind, ", ".join(parts)


def _rows(path: Path) -> Mapping[str, Mapping[str, str]]:
    with path.open(newline="") as file:
        return {row["architecture"]: row for row in csv.DictReader(file)}


def _number(text: str) -> str:
    """Return a number as it is written by hand.

    >>> _number("1.9e-06")
    '1.9e-6'
    """
    digits, _, power = text.partition("e")
    return f"{digits}e{int(power)}"
