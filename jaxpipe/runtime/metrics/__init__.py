"""What rank 0 reports of a run: metrics, the result of a step, the trace, trackers."""
