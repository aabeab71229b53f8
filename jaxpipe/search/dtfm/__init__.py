"""DT-FM's cost of a grouping, and the search for the grouping of smallest cost."""

from jaxpipe.search.dtfm.cost import dtfm_cost
from jaxpipe.search.dtfm.descent import align
from jaxpipe.search.dtfm.exact import exact_grouping
from jaxpipe.search.dtfm.grouping_search import Budget, search
from jaxpipe.search.dtfm.network import prepare
from jaxpipe.search.dtfm.weights import Weights, link_weights

__all__ = [
    "Budget",
    "Weights",
    "align",
    "dtfm_cost",
    "exact_grouping",
    "link_weights",
    "prepare",
    "search",
]
