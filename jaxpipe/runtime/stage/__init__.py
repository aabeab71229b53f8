"""What a stage computes in a training step, as pure functions, and their compilation.

::

    Model (protocol) ─► Stage ─► StageFunctions ─► compile_stage ─► CompiledStage
                                        │                               │
                                        └────────── StageCalls ─────────┘     what a step calls

- `calls`: the interface between the interpreter and a stage
- `model`, `stage`: layers, embedding, head and loss of one stage, with rematerialisation
- `functions`: forward, backward, update; `vjp`: residuals that a jitted forward can return;
  `split_backward`: separate gradients of input and weights (zero bubble)
- `compiler`: compiles functions side by side; `lowered_cache`: the next start traces none of them
- `optimizer`, `moments`, `zero1`: the optimizer by its name, its state, and ZeRO-1 over replicas;
  `loss_scale`: for float16
- `gradient_buckets`: gradients as vectors for the all-reduce
- `mesh`: a stage over several local devices; `train_state`: the state of all stages of a rank
"""
