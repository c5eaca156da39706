"""Seals: on a meta, and on a cell of a server that others can write to."""
