"""In a bucket."""
