"""One step of one rank: the interpreter executes its program, instruction by instruction.

::

    Worker ─► Interpreter ─► StageRun ─────► StageCalls      forward, backward, update
                  │   │  │   CompletionQueue                 computes in flight on a GPU
                  │   │  └─► Mailbox ──────► messages        send, receive
                  │   └────► GradientSync ─► AllReducer      reduce
                  │          ParameterGather                 with a sharded optimizer
                  └────────► SpanRecorder                    the trace

- `worker`: compile a rank's stages and prepare its transports; train and evaluate with them
- `batch`: the samples that a rank reads in a step
- `step_totals`: the scalars that all ranks sum; `nonfinite`: steps that they skip
"""
