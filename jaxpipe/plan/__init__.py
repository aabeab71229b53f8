"""Who gets what: placement, cut and sync trees."""
