"""The fleet: sessions in Redis that any number of workers run, with RQ to carry the word.

who submits      door.py client.py accepting.py calls.py      a graph, a call or many become a session
                 handle.py status.py following.py failures.py  what the caller holds of it, and sees
                 moves.py answering.py asking.py               what the caller does to it
what travels     tokens.py    RQ carries tokens               programs.py declining.py  code, sealed
who works        pool.py      a parent and its children       forks.py board.py estate.py
                 worker.py    one process                     listening.py  RQ's side of it
                 slice.py     what it does with a token       leaving.py  how it comes to its end
who mends        steward.py   one per pool                    sweeper.py  what the dead have left
                 reaping.py   what a dead worker held         lists.py  what there is to look after
who looks on     health.py    signs of life                   logs.py
"""
