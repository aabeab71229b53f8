"""The server that merges islands of `[quorum]`, and the line of an island to it.

::

    island, rank 0 ─► MergeLine ─┐  TCP, with the key of `merge.json`   ┌─► JoinDesk ─► MergeServer
                                 └── hello, deliveries ──► anchors ◄────┘               └► Merger

- `messages`: what both say, and how it is framed
- `alike`: what an island and its server have in common
- `merge_line`: the island's side
- `merge_server`: the server's side; `merged_checkpoints`, `merge_log_file`: its folder
- `serve_islands`: all of this in the folder of a server
- `replay_folders`: a run that is replayed from the log and the folders of its islands;
  `replay_islands`: the islands and the merges; `replay_line`: the line of such an island
"""
