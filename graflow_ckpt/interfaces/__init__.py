"""Interfaces: how people and other programs reach the package. Nothing below imports them."""
