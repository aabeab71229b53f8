"""What happened: spans, traces, and how they are drawn."""
