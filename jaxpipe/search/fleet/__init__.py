"""Plans for thousands of devices: blocks of equal devices, valued in closed form."""

from jaxpipe.search.fleet.blocks import Along, Block, Choice, Teams, blocks_of
from jaxpipe.search.fleet.fleet_cost import FleetCosts, FleetStep
from jaxpipe.search.fleet.fleet_plan import Fits, plan_of_teams
from jaxpipe.search.fleet.fleet_search import FleetSearch, search_fleet
from jaxpipe.search.fleet.team import Team, shared_out

__all__ = [
    "Along",
    "Block",
    "Choice",
    "Fits",
    "FleetCosts",
    "FleetSearch",
    "FleetStep",
    "Team",
    "Teams",
    "blocks_of",
    "plan_of_teams",
    "search_fleet",
    "shared_out",
]
