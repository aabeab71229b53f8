"""Plan again after a loss or a join: moving the state from the running plan counts as well."""

from jaxpipe.search.remaining.candidates import Remaining, candidates
from jaxpipe.search.remaining.choose import Future, Replanned, choose

__all__ = ["Future", "Remaining", "Replanned", "candidates", "choose"]
