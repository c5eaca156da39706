"""The fleet: sessions in Redis that any number of workers run, with RQ to carry the word.

submit.py    a graph becomes a session           handle.py   what the caller holds of it
tokens.py    RQ carries tokens                   slice.py    what a worker does with one
programs.py  code reaches workers, sealed        keeper.py   leases are renewed
pool.py      parent, workers, steward            sweeper.py  what the dead have left
"""
