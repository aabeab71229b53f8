"""DT-FM's cost of a grouping, and the search for the grouping of smallest cost."""

from jaxpipe.plan.dtfm.cost import DtfmCost, dtfm_cost
from jaxpipe.plan.dtfm.descent import align
from jaxpipe.plan.dtfm.exact import exact_grouping
from jaxpipe.plan.dtfm.grouping_search import Budget, Found, search
from jaxpipe.plan.dtfm.network import Network, prepare
from jaxpipe.plan.dtfm.weights import Weights, link_weights

__all__ = [
    "Budget",
    "DtfmCost",
    "Found",
    "Network",
    "Weights",
    "align",
    "dtfm_cost",
    "exact_grouping",
    "link_weights",
    "prepare",
    "search",
]
