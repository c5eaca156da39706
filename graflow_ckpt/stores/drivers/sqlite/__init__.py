"""In a SQLite database."""
