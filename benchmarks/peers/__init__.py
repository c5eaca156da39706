"""Other queues, and bare floors: what the fleet is measured beside.

A peer is a `Contender` (benchmarks/fleet_runs.py): it runs as its users run it, as real processes of its own
command, with the fastest settings that its documentation offers to somebody who keeps every result. Each file
says which these are. Nothing here is tuned for us, and nothing is turned off that a user would miss.
"""
