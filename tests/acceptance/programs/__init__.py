"""Programs that tests run as processes of their own, and kill."""
