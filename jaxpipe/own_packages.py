"""Find another package that takes the place of jaxpipe's own `models` or `topo`.

Both are top-level packages, and Python imports the first of a name on its path. In a folder that
has a `models` of its own, `python -m jaxpipe` finds that one; so does a program that imports
jaxpipe next to a package of that name. The command `jaxpipe` and all processes that jaxpipe starts
leave the working directory out of their path.
"""

import sys
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

from jaxpipe.errors import ConfigError

_OWN = ("models", "topo")


@cache
def check_own_packages() -> None:
    """Check that `models` and `topo` are the packages that belong to this jaxpipe.

    Raises:
        ConfigError: one is another package; the message names its path.
    """
    root = Path(__file__).resolve().parents[1]
    for name in _OWN:
        found = _location(name)
        if found is not None and found.resolve() != root / name:
            raise ConfigError(
                f"jaxpipe needs its own package `{name}`, and Python finds {found} instead: start "
                f"it as `jaxpipe` or `python -P -m jaxpipe`, leave {found.parent} out of "
                "`PYTHONPATH`, or rename that package"
            )


def _location(name: str) -> Path | None:
    """Return the folder or file of a top-level module, without importing it."""
    spec = _spec(name)
    if spec is None:
        return None  # a source tree that is not installed: the import will say so
    if spec.submodule_search_locations is not None:
        return Path(next(iter(spec.submodule_search_locations)))
    return None if spec.origin is None else Path(spec.origin)


def _spec(name: str) -> ModuleSpec | None:
    # `find_spec` refuses modules without a spec, such as those that a test makes by hand.
    return sys.modules[name].__spec__ if name in sys.modules else find_spec(name)
