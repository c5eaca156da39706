"""Commands that run a program, or tell what would run."""
