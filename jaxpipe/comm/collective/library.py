"""The all-reduce of a transport's own library, where it has one."""

from typing import Protocol, runtime_checkable

import numpy as np

from jaxpipe.comm.transport import Receiving


@runtime_checkable
class SumsInLibrary(Protocol):
    """A transport whose library sums arrays by itself."""

    def sum_in_library(self, array: np.ndarray, *, members: tuple[int, ...]) -> Receiving:
        """Start to sum `array` over `members`, in place; all of them begin in the same order.

        The array may not be touched before `wait` has returned it.
        """
        ...
