"""GPT-3 XL, trained by the cores of one machine and checked against one device."""
