"""The processes of a run: how `mpirun` starts them, and what each does before jax and MPI start.

- `mpirun`: start the ranks, forward signals to them; `tee`: pass on their output
- `launched_rank`: the rank of this process, as the launcher states it
- `process_signals`: end a rank with its launcher, answer Ctrl-Z, and intercept a SIGTERM that Open
  MPI's `mpirun` would turn into a kill
- `exit_cause`: the rank and the signal that a launcher reports; `ulfm`: the options for survival
- `user_cache`: where a user keeps what outlives runs
- `compile_cache`: the executables that ranks share, and that the next start reads
- `quick_compiles`: XLA's flags for processes that compile a lot
- `affinity`, `core_claims`, `gpu_assignment`: the core and the GPUs of a rank
- `preflight`: all ranks have the same versions and the same configuration
"""
