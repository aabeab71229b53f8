"""The samples of a replica in one step, as its stages read them, microbatch by microbatch."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, Integer

from jaxpipe.runtime.stage.calls import StageSpec, TargetArrays
from jaxpipe.runtime.stage.placed import SampleParts


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """The samples of a replica in one step.

    `samples` are windows of tokens, inputs and, shifted by one, targets; or, with `labels` as
    targets, inputs of any kind. None on ranks that need neither. `first_microbatch` is the number
    of the replica's microbatch 0, counted over all replicas. All ranks read the `segments` of
    packed samples, and those behind a bottleneck the inputs.
    """

    step: int
    first_microbatch: int
    samples: Integer[np.ndarray, "microbatches microbatch ..."] | None
    labels: Int[np.ndarray, "microbatches microbatch ..."] | None = None
    segments: Int[np.ndarray, "microbatches microbatch seq"] | None = None

    def inputs(self, microbatch: int) -> Integer[np.ndarray, "samples ..."]:
        """Return what the first stage reads of a microbatch."""
        assert self.samples is not None, "not every stage reads samples"
        samples = self.samples[microbatch]
        return samples[:, :-1] if self.labels is None else samples

    def targets(self, microbatch: int) -> Int[np.ndarray, "samples ..."]:
        """Return what the last stage reads of a microbatch."""
        assert self.samples is not None, "not every stage reads samples"
        return self.samples[microbatch][:, 1:] if self.labels is None else self.labels[microbatch]

    def with_parts(
        self, targets: Int[np.ndarray, "samples ..."] | None, microbatch: int, spec: StageSpec
    ) -> TargetArrays:
        """Return the targets of a stage, if any, with the segments and tokens that it reads."""
        if self.segments is None and not spec.reads_tokens:
            return targets
        return SampleParts(
            segments=None if self.segments is None else self.segments[microbatch],
            tokens=self.inputs(microbatch) if spec.reads_tokens else None,
            targets=targets,
        )
