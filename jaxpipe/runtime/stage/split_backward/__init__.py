"""Split backward: the gradient of a stage's input, and those of its weights, separately."""

from jaxpipe.runtime.stage.split_backward.backward import (
    Carried,
    Crossing,
    SplitBackward,
    split_backward,
)

__all__ = ["Carried", "Crossing", "SplitBackward", "split_backward"]
