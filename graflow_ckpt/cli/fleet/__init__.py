"""Commands about a fleet: work is given to it, watched, and steered."""
