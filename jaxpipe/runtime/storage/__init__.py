"""Durable files, for checkpoints and datasets, on disks and in object storage.

- `atomic_write`: files that a crash leaves whole or not at all
- `checksum`: checksums of bytes, arrays and files, and JSON that carries its own
- `block_checksums`: checksums of the blocks of a file
- `kept_file`: what a user keeps between runs, found by all that it depends on
- `object_folder`: a prefix in object storage and its objects, the one border to fsspec
- `stored_array`: an array in object storage, of which only the parts that are read are fetched
"""
