"""The fleet: sessions in Redis that any number of workers run, with RQ to carry the word.

submitting       client.py accepting.py              a graph, a call or many become a session
                 handle.py status.py                  what the caller holds of it, sees, and does to it
what is sent     tokens.py    RQ carries tokens               programs.py declining.py  code, sealed
working          pool.py      a parent and its children       board.py
                 worker.py    one process, until its end, and RQ's side of it
                 slice.py     what it does with a token
repairing        steward.py   one per pool, and its sweeper
                 deaths.py    what a dead worker held         lists.py  what there is to look after
watching         health.py    signs of life
"""
