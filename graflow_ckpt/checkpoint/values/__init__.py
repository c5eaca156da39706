"""Values as bytes: plain ones, live ones, code, files, what several share; and their digests."""
