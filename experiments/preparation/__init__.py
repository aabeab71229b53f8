"""How fast texts become tokens beside `datasets.map`, and in how much memory."""
