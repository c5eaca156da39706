"""Commands that look at sessions, checkpoints, settings and this machine."""
