"""All pairs of settings of the table of compatibility: either excluded, or right."""

from itertools import combinations

from jaxpipe.config import Config
from jaxpipe.config.compatibility import EXCLUSIONS
from jaxpipe.errors import ConfigError, UserError
from jaxpipe.plan import Plan
from jaxpipe.runtime.stage.compile_once import CompileOnce
from jaxpipe.verify.certificate import compared, reference
from jaxpipe.verify.smaller_plan import shrunk
from jaxpipe.verify.stand_in import form_of
from tests.config.chosen_settings import EXAMPLES, checked

EXCLUDED = {
    frozenset((str(row.first), str(row.second))): (str(row.first), str(row.second))
    for row in EXCLUSIONS
}
"""The pairs that the table excludes, in its order."""


def _field(name: str) -> str:
    return name.split("`")[1]


PAIRS = tuple(
    (first, second)
    for first, second in combinations(EXAMPLES, 2)
    if _field(first) != _field(second)  # of one field a configuration has one value
)


def pairs_with(setting: str) -> tuple[str, ...]:
    """Return the settings that form a pair with this one, which stands first in the pair."""
    return tuple(second for first, second in PAIRS if first == setting)


def accepted(first: str, second: str) -> tuple[Config, Plan] | None:
    """Return a configuration with two settings, and its plan; None where it is refused.

    Raises:
        UserError: it is refused, and not for two settings that exclude each other.
    """
    # In the order of the table: of two values of one field, the later one wins.
    ordered = EXCLUDED.get(frozenset((first, second)), (first, second))
    try:
        return checked(*(EXAMPLES[name] for name in ordered))
    except ConfigError as refusal:
        if "exclude each other" not in str(refusal):
            raise
        return None


class PairVerifier:
    """Verifies pairs; those that are the same when they are made smaller, once."""

    def __init__(self) -> None:
        self._faults: dict[str, str] = {}

    def fault(self, first: str, second: str) -> str:
        """Return what is wrong with a pair of settings, or nothing."""
        is_excluded = frozenset((first, second)) in EXCLUDED
        try:
            pair = accepted(first, second)
        except UserError as error:
            return f"refused, and the table does not say so: {error}"
        if pair is None:
            return ""
        return "accepted, and the table excludes it" if is_excluded else self._wrong(*pair)

    def _wrong(self, config: Config, plan: Plan) -> str:
        small = shrunk(config, plan)
        sections = (getattr(small.config, name) for name in _COMPUTED)
        key = repr((*sections, small.config.run.seed, small.plan))
        if key not in self._faults:
            expected = reference(config, plan, form_of(config))
            certificate = compared(expected, compiler=CompileOnce())
            is_right = certificate.is_proved
            self._faults[key] = "" if is_right else "\n".join(certificate.lines())
        return self._faults[key]


_COMPUTED = ("model", "data", "mesh", "train", "optimizer", "loss_scale", "lora", "outer", "comm")
"""The sections that decide what is computed."""
