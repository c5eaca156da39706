"""Files: checkpoints in a folder, each a trio, and what else asks the disk."""
