"""What a body sees: its context, its attempt with the values that it has, and its loops."""
