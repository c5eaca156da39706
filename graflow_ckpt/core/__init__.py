"""The pure core: what a session is, and what each commit does to it.

Standard library only; no I/O, threads, clock, randomness or logging in here.
"""
