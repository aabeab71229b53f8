"""The price in loss of boundaries of low rank."""
