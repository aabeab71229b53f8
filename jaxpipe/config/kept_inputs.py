"""The inputs of a run in its own folder, so that it can be moved and handed on.

::

    run/run.toml         the configuration, with the paths of the files next to it
    run/tokenizer.json   what turns text into tokens; also that of bytes
    run/cluster.toml     the cluster, if it is not one of the catalogue
    run/plan.toml        the plan, which the launcher writes

`generate`, `trace` and `export` need nothing else; training again needs the dataset.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxpipe.config.read import BESIDE_FILE, Config, config_from, to_tree
from jaxpipe.errors import ConfigError
from jaxpipe.runtime.data import (
    Tokenizer,
    byte_level_definition,
    dataset_folder,
    load_byte_pairs,
    open_dataset,
)
from jaxpipe.runtime.data.dataset.record import RECORD
from jaxpipe.runtime.data.dataset.tokenizer_files import write_tokenizer_files
from jaxpipe.runtime.run_config import ComputeKind
from jaxpipe.runtime.storage.object_folder import ObjectFolder
from jaxpipe.topo import Cluster
from jaxpipe.topo.toml_text import toml_text
from jaxpipe.topo.write import cluster_toml

if TYPE_CHECKING:
    from jaxpipe.runtime.checkpoint import Checkpoint

CONFIG_FILE, CLUSTER_FILE, PLAN_FILE = "run.toml", "cluster.toml", "plan.toml"
TOKENIZER_FILE = "tokenizer.json"
_ABOUT = "# The configuration of this run; its paths, except those of `data`, are in this folder."


def keep_inputs(config: Config, cluster: Cluster, folder: Path) -> None:
    """Write configuration, tokenizer and cluster into the folder of a run.

    Raises:
        OSError: the folder cannot be written.
        DataError: the dataset cannot be opened.
    """
    tree = to_tree(config)
    tree["run"]["folder"] = "."
    tree["plan"] = {name: tree["plan"][name] for name in BESIDE_FILE} | {"file": PLAN_FILE}
    if _is_file(config.plan.cluster):
        tree["plan"]["cluster"] = CLUSTER_FILE
        (folder / CLUSTER_FILE).write_text(_cluster_text(cluster))
    (folder / CONFIG_FILE).write_text(f"{_ABOUT}\n\n{toml_text(_without_none(tree))}")
    data = dataset_folder(config.data.folders[0])  # all have the same tokenizer
    # Paced runs need no data.
    is_paced = config.run.compute is ComputeKind.PACED
    if not is_paced if isinstance(data, ObjectFolder) else (data / RECORD).exists():
        tokenizer = open_dataset(data, verify=False).tokenizer
        keep_tokenizer(tokenizer, folder)


def keep_tokenizer(tokenizer: Tokenizer, folder: Path) -> Path:
    """Write the files of a tokenizer into a folder; those of bytes as the library tokenizers."""
    files = tokenizer.files or {TOKENIZER_FILE: byte_level_definition().encode()}
    write_tokenizer_files(files, folder)
    return folder / TOKENIZER_FILE


def config_in(folder: Path, tree: dict[str, Any]) -> Config:
    """Return the configuration of the run in a folder, wherever it has been moved.

    `tree` is the configuration as the run has recorded it; cluster and plan are read from the
    folder, if they are there.

    Raises:
        ConfigError: the configuration is wrong.
    """
    config = config_from(tree)
    plan = config.plan
    if (folder / CLUSTER_FILE).exists() and _is_file(plan.cluster):
        plan = replace(plan, cluster=str(folder / CLUSTER_FILE))
    if plan.file is not None and (folder / PLAN_FILE).exists():
        plan = replace(plan, file=str(folder / PLAN_FILE))
    return replace(config, plan=plan, run=replace(config.run, folder=str(folder)))


def tokenizer_of(checkpoint: "Checkpoint") -> Tokenizer:
    """Return the tokenizer of the run of a checkpoint; older runs have it in their dataset.

    Raises:
        DataError: it is neither in the folder of the run nor in its dataset.
    """
    config = config_from(checkpoint.metadata["config"])
    store = checkpoint.folder
    run = store.parent.parent if isinstance(store, Path) else Path(config.run.folder)
    if (path := run / TOKENIZER_FILE).exists():
        return load_byte_pairs(path, inside=True)
    return open_dataset(dataset_folder(config.data.folders[0]), verify=False).tokenizer


def _is_file(cluster: str) -> bool:
    return cluster.partition(":")[0].endswith(".toml")


def _cluster_text(cluster: Cluster) -> str:
    try:
        return cluster_toml(cluster, about="The cluster of this run.")
    except ValueError as error:
        raise ConfigError(f"`plan.cluster` cannot be kept in `run.folder`: {error}") from error


def _without_none(tree: dict[str, Any]) -> dict[str, Any]:
    """Return a tree without the values that TOML has no word for: their fields have defaults."""
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in tree.items()
        if value is not None
    }
