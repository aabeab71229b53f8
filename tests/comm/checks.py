"""The conformance suite: what every transport must do, and collectives over it."""

from tests.comm.conformance import MESSAGE_CHECKS
from tests.comm.conformance_all_reduce import ALL_REDUCE_CHECKS
from tests.comm.conformance_exchange import EXCHANGE_CHECKS

CHECKS = (*MESSAGE_CHECKS, *ALL_REDUCE_CHECKS, *EXCHANGE_CHECKS)
