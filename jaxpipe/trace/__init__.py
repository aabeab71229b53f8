"""What happened: spans and traces, as Perfetto JSON, in numbers and as pictures."""

from jaxpipe.trace.chrome import read_chrome, to_chrome, write_chrome
from jaxpipe.trace.messages import messages
from jaxpipe.trace.plot import plot
from jaxpipe.trace.span import Lane, Span, Trace, Truth
from jaxpipe.trace.summary import RankSummary, StepSummary, summarise

__all__ = [
    "Lane",
    "RankSummary",
    "Span",
    "StepSummary",
    "Trace",
    "Truth",
    "messages",
    "plot",
    "read_chrome",
    "summarise",
    "to_chrome",
    "write_chrome",
]
