"""Profiles: measured costs of the parts of a model on this device, and the speed of this machine.

::

    StageFunctions ──► part.measure_part ──► PartCosts      seconds with spread, bytes, FLOPs
    ModelConfig ──► gpt_parts.measure_gpt ──► GptCosts ──► as_profile ──► Profile of the planner
    this machine ──► machine_speed.kept_speed, measured_speed ──► Speed
"""
