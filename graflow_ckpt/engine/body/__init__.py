"""The view of a body: its context, its attempt with the values that it has, and its loops."""
