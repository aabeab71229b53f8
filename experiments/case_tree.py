"""The configuration of a case of an experiment: its sections over those of the base."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

Tree = dict[str, dict[str, Any]]
"""A configuration as nested dictionaries: sections, and their fields."""


def case_tree(
    case: Mapping[str, Any], base: Mapping[str, Mapping[str, Any]], *, run: Path, data: Path
) -> Tree:
    """Return the sections of a case over those of the base, with the folders of run and data.

    What is no section, such as the name of the case, is left out.

    >>> base = {"train": {"steps": 2, "batch": 8}}
    >>> tree = case_tree({"name": "a", "train": {"batch": 4}}, base, run=Path("r"), data=Path("d"))
    >>> tree["train"], tree["run"]
    ({'steps': 2, 'batch': 4}, {'folder': 'r'})
    """
    own = {name: section for name, section in case.items() if isinstance(section, Mapping)}
    tree = {name: {**base.get(name, {}), **own.get(name, {})} for name in {**base, **own}}
    tree["run"] = {**tree.get("run", {}), "folder": str(run)}
    tree["data"] = {"folder": str(data)}
    return tree
