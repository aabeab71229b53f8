"""All fault families, in the order in which they are run."""

from jaxpipe.chaos.corrupt import CORRUPT
from jaxpipe.chaos.cut import CUT
from jaxpipe.chaos.disk import DISK
from jaxpipe.chaos.folder import FOLDER
from jaxpipe.chaos.fuzz import FUZZ
from jaxpipe.chaos.halt import HALT
from jaxpipe.chaos.harness.trial import Family
from jaxpipe.chaos.host import HOST
from jaxpipe.chaos.join import JOIN
from jaxpipe.chaos.kill import KILL
from jaxpipe.chaos.orphan import ORPHAN
from jaxpipe.chaos.save import SAVE
from jaxpipe.chaos.shrink import SHRINK
from jaxpipe.chaos.slow import SLOW
from jaxpipe.chaos.start import START
from jaxpipe.chaos.starve import STARVE
from jaxpipe.chaos.stop import CALM, STOP
from jaxpipe.chaos.survive import SURVIVE
from jaxpipe.chaos.term import TERM
from jaxpipe.errors import ConfigError

FAMILIES: tuple[Family, ...] = (
    *(KILL, STOP, HALT, STARVE, CALM, CORRUPT, SAVE, TERM),
    *(START, ORPHAN, FOLDER, CUT, SHRINK, SURVIVE, FUZZ),
    *(HOST, JOIN, SLOW, DISK),
)


def families(names: tuple[str, ...]) -> tuple[Family, ...]:
    """Return the families with these names, by default all.

    Raises:
        ConfigError: there is no such family.

    >>> [family.name for family in families(("stop", "kill"))]
    ['stop', 'kill']
    """
    known = {family.name: family for family in FAMILIES}
    for name in names:
        if name not in known:
            raise ConfigError(
                f"`FAMILY` names a fault family, is {name!r}; choose from {', '.join(known)}"
            )
    return tuple(known[name] for name in names) if names else FAMILIES
