"""Sessions: where a SessionState lives, and the views of it that users know."""
