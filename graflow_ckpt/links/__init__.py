"""Links: connections to servers, with what goes wrong said in our own words; and processes.

Promise: nothing is sent twice unless the caller asks for it, no socket is shared with a forked
child, and no message, repr or log holds a password.
Not here: sessions, checkpoints, or anything else that a server is used for.
"""
