"""In Postgres."""
