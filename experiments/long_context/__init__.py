"""How long a sequence may be on the devices of a rank."""
