"""A child process runs the body of one attempt: process.py starts it and answers, __main__.py is in it."""
