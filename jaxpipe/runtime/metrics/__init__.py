"""Everything that rank 0 reports of a run.

::

    step ─► StepEnd ─► StepMetrics ─┬─► MetricsFile     metrics.jsonl, one line per step
                                    ├─► Trackers        TensorBoard, trackio, W&B
                                    └─► the caller      the line on the terminal
    spans of all ranks ─► gather_trace ─► write_trace   trace.json and timeline.png

- `records`: the metrics of a step, and what is read of their file; `metrics_file` writes it
- `step_result`: a step that has ended, as every rank sees it
- `trace_file`: the trace and its picture
- `trackers`: services that show metrics elsewhere
"""
