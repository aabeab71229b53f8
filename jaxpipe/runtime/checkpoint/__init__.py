"""Checkpoints: safetensors shards, a manifest with a checksum per tensor, names free of the cut.

::

    one rank          begin ──► broadcast "go"
    every rank        flatten ──► write_shard ──► encode_entries ──► gather
    one rank          decode_entries ──► commit ──► prune
    one rank          newest_valid
    every rank        open_checkpoint ──► read(names(...)) ──► restore
"""

from jaxpipe.runtime.checkpoint.checkpoint import Checkpoint, commit, open_checkpoint, verify
from jaxpipe.runtime.checkpoint.folders import begin, discard, latest, partial_folder, prune
from jaxpipe.runtime.checkpoint.manifest import TensorEntry, decode_entries, encode_entries
from jaxpipe.runtime.checkpoint.newest_valid import newest_valid
from jaxpipe.runtime.checkpoint.shard import write_shard
from jaxpipe.runtime.checkpoint.tensor_names import flatten, names, restore

__all__ = [
    "Checkpoint",
    "TensorEntry",
    "begin",
    "commit",
    "decode_entries",
    "discard",
    "encode_entries",
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
