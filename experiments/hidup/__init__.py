"""Mixtures of experts, after HiDup (SoCC 2022): the models, and that they learn."""
