"""The session in Redis: its keys, its scripts, and what goes to and fro."""
