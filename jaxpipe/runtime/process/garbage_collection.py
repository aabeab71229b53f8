"""How often Python looks for garbage in cycles, in processes that import jax; none is imported."""

import atexit
import gc

_NEW_OBJECTS = 20_000
_YOUNGER_COLLECTIONS = 20


def collect_rarely() -> None:
    """Let the garbage collector of this process wait for more new objects than its default of 700.

    Imports of jax and flax, and the tracing of a model, make half a million objects that stay, and
    the collector visits them again and again: of the 2.4 s of processor time that the imports of a
    rank take, 0.4 s (measured). Objects without cycles are freed as before, at once.

    At its exit Python collects everything again, several times, although the process ends: another
    0.4 s of the 1.6 s that a process takes which only imports a rank (measured). So what is left
    then counts as permanent, once the other functions of `atexit` have run.
    """
    gc.set_threshold(_NEW_OBJECTS, _YOUNGER_COLLECTIONS, _YOUNGER_COLLECTIONS)
    atexit.unregister(gc.freeze)  # a second call changes nothing
    atexit.register(gc.freeze)
