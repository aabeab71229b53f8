"""Attacks and mistakes of a first hour with jaxpipe, tried again."""
