"""In Redis."""
