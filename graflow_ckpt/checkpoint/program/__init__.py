"""The program of a session: its graph and fingerprints, and whether it still fits."""
