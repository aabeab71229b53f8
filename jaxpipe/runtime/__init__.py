"""Execution: every rank trains its stages by the program that the plan gives it.

::

    train ─► step.worker ─► step.interpreter ─► stage        one step, instruction by instruction
      ├────► metrics, checkpoint                             after a step, while the next one runs
      └────► watchdog, recovery                              when a rank hangs or is lost

- `config`: the sections of the configuration; `job`: everything that a run needs, resolved
- `open_transport`: the transport of a rank; `process`: the processes of a run
- `train`: the training loop; `step`: one step; `stage`: what a stage computes
- `data`: text, tokens and batches; `metrics`: reports of rank 0
- `train_snapshot`, `checkpoint`, `storage`: the state as named tensors, in files
- `watchdog`: hang detection; `recovery`: continue without lost ranks
"""
