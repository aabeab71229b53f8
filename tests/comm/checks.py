"""The conformance suite: what every transport must do, and all-reduces over it."""

from tests.comm.conformance import MESSAGE_CHECKS
from tests.comm.conformance_sums import SUM_CHECKS

CHECKS = (*MESSAGE_CHECKS, *SUM_CHECKS)
