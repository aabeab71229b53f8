"""The backward of a stage, split into the gradient of its input and those of its weights."""

from jaxpipe.runtime.stage.split_backward.backward import (
    Carried,
    Crossing,
    SplitBackward,
    split_backward,
)

__all__ = ["Carried", "Crossing", "SplitBackward", "split_backward"]
