"""Sessions: where a SessionState is kept, and the views of it that users know."""
