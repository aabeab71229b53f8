"""The folder of a run: who may write to it, what is in it at the start, and which runs there are.

::

    folder_lock    one run at a time            list_runs, runs_picture    `jaxpipe runs`
    prepare_run    plan.toml and the inputs     output_files               what commands replace
"""
