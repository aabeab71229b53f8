"""Checkpoints in object storage, by a URL that fsspec opens: `checkpoint.folder = "s3://..."`.

::

    s3://bucket/prefix/step-00000100/stage-0-5f0c91.safetensors     written by the rank of stage 0
                                     stage-1-a81d24.safetensors     written by the rank of stage 1
                                     manifest.json                  written last, by rank 0: commits

Object stores rename nothing, and replace an object as a whole. A shard has a random part in its
name, so a save overwrites no other; the manifest names the shards of its save, and writing it
commits them. A save that was interrupted leaves objects that no manifest names, which the next save
removes.

- `object_shard`: tensors of a safetensors object, read by their ranges of bytes
- `object_store`: find, save, commit, remove

`jaxpipe.runtime.storage.object_folder` is the border to fsspec.
"""
