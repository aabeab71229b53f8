"""Static checks of a lowered schedule: completeness, dependencies, no deadlock."""
