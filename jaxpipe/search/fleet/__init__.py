"""Plans for thousands of devices: blocks of equal devices, valued in closed form."""

from jaxpipe.search.fleet.blocks import Along, Choice, Teams, blocks_of
from jaxpipe.search.fleet.fleet_cost import FleetCosts, FleetStep
from jaxpipe.search.fleet.fleet_plan import Fits, plan_of_teams
from jaxpipe.search.fleet.fleet_search import search_fleet
from jaxpipe.search.fleet.team import Team, shared_out

__all__ = [
    "Along",
    "Choice",
    "Fits",
    "FleetCosts",
    "FleetStep",
    "Team",
    "Teams",
    "blocks_of",
    "plan_of_teams",
    "search_fleet",
    "shared_out",
]
