"""In what order: instructions, generators of schedules, their lowering, check and drawing."""
