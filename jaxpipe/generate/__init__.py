"""Text from a trained model: tokens with cached keys and values, stop strings, streaming.

::

    prompts ─► tokens.generated ─► a token of each text ─► text.Continuation ─► text to show
"""

from jaxpipe.generate.text import Continuation
from jaxpipe.generate.tokens import generated

__all__ = ["Continuation", "generated"]
