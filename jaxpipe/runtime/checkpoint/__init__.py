"""Checkpoints: safetensors files, a manifest with a checksum per tensor, names per layer.

::

    rank 0            begin_checkpoint ──► broadcast "go"
    every rank        flatten ──► write_shard ──► entries ──► gather
    rank 0            commit ──► prune

    rank 0            newest_valid
    every rank        resumed_state ──► read(names(...)) ──► restore

- `checkpoint`: commit and read a checkpoint as a whole; `folders`: where it is, `prune`
- `manifest`, `shard`, `streamed_shard`: its files, verified when written and when read
- `checkpoint_files`, `stores`: the same in a local folder and in `object_storage`
- `tensor_names`: names of tensors that any partition of the layers can read
- `newest_valid`, `resume`: which checkpoint a run resumes from, on all ranks
- `make_room`: remove old checkpoints from a disk that is full
- `save_parts`: what a rank contributes; `async_saver`: save while the training continues
- `own_disks`: all of this where the hosts share no folder
- `object_storage`: all of this behind a URL

The package needs neither jax nor MPI; `resume`, `async_saver` and `own_disks` do, and are imported
by themselves.
"""

from jaxpipe.runtime.checkpoint.checkpoint import Checkpoint, Read, commit, open_checkpoint, verify
from jaxpipe.runtime.checkpoint.folders import (
    begin_checkpoint,
    discard,
    partial_folder,
    prune,
)
from jaxpipe.runtime.checkpoint.manifest import TensorEntry
from jaxpipe.runtime.checkpoint.newest_valid import newest_valid
from jaxpipe.runtime.checkpoint.stores import (
    checkpoint_place,
    committed,
    latest,
)
from jaxpipe.runtime.checkpoint.streamed_shard import (
    StreamedTensor,
    write_shard,
    write_streamed_shard,
)
from jaxpipe.runtime.checkpoint.tensor_names import flatten, names, restore, shapes

__all__ = [
    "Checkpoint",
    "Read",
    "StreamedTensor",
    "TensorEntry",
    "begin_checkpoint",
    "checkpoint_place",
    "commit",
    "committed",
    "discard",
    "flatten",
    "latest",
    "names",
    "newest_valid",
    "open_checkpoint",
    "partial_folder",
    "prune",
    "restore",
    "shapes",
    "verify",
    "write_shard",
    "write_streamed_shard",
]
