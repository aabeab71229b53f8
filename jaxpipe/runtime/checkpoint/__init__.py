"""Checkpoints: safetensors files, a manifest with a checksum per tensor, partition-free names.

::

    rank 0            begin_checkpoint ──► broadcast "go"
    every rank        flatten ──► write_shard ──► entries ──► gather
    rank 0            commit ──► prune

    rank 0            newest_valid
    every rank        agree_on_checkpoint ──► read(names(...)) ──► restore
"""

from jaxpipe.runtime.checkpoint.checkpoint import Checkpoint, commit, open_checkpoint, verify
from jaxpipe.runtime.checkpoint.folders import (
    begin_checkpoint,
    discard,
    latest,
    partial_folder,
    prune,
)
from jaxpipe.runtime.checkpoint.manifest import TensorEntry
from jaxpipe.runtime.checkpoint.newest_valid import newest_valid
from jaxpipe.runtime.checkpoint.shard import write_shard
from jaxpipe.runtime.checkpoint.tensor_names import flatten, names, restore

__all__ = [
    "Checkpoint",
    "TensorEntry",
    "begin_checkpoint",
    "commit",
    "discard",
    "flatten",
    "latest",
    "names",
    "newest_valid",
    "open_checkpoint",
    "partial_folder",
    "prune",
    "restore",
    "verify",
    "write_shard",
]
