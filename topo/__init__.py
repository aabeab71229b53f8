"""Where: devices, links and clusters."""
