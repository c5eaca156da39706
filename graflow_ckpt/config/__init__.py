"""Config: settings from flags, the environment and files, checked where they come in."""
