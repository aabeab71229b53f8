"""Recovery within a job: when a rank is lost, the others continue with a smaller plan.

- `last_state`: the latest complete state of a rank
- `shrink`: the survivors agree on a smaller job, within a deadline
- `state_transfer`: they exchange the tensors that they need for their new stages

Recovery by a restart, from a checkpoint, is in `jaxpipe.run.supervise`.
"""
