"""Checkpoints of hosts that share no folder: each disk has a part, and a copy of another's part.

::

    rank 0, disk A   stage-0 ──────────┬──► copy on disk B         manifest on both: a message
    rank 1, disk B   stage-1 ──────────┴──► copy on disk A         commits, not a rename

    resume     which disk holds which file ──► newest whole step ──► fetch what is missing here

- `disks`: which ranks see the same run folder; `find_disks` finds it out
- `copies`: the rank that keeps a copy of another's shards, by the plan
- `file_transfer`: a file over the transport, in pieces
- `commit_by_message`: save on all disks, and commit once everything is written and verified
- `available`: the newest step of which the disks together hold every file
- `fetch`: bring the files that the ranks of a disk need to it

Except `disks` and `copies`, the modules need jax, for the transport.
"""
