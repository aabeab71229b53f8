"""Split backward (zero bubble): the gradient of the input first, those of the weights later.

::

    backward ─► trace ─► jaxpr ─► partition ─┬─► scan.run_first    backward-input
                                             └─► scan.run_second   backward-weight

- `backward`: the two halves as functions; `partition`: which equation belongs to which half
- `scan`: evaluates the halves, scans included
"""

from jaxpipe.runtime.stage.split_backward.backward import (
    Carried,
    CarryForm,
    Crossing,
    SplitBackward,
    split_backward,
)

__all__ = ["Carried", "CarryForm", "Crossing", "SplitBackward", "split_backward"]
