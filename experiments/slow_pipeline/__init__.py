"""Four stages over links of 100 Mbit/s and 40 ms, beside a local network: speed and loss."""
