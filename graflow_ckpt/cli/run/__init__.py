"""Commands that run a program, or say what would run."""
