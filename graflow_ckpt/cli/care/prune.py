"""`graflow-ckpt prune`: what is typed and scheduled most often, without its group."""

from graflow_ckpt.cli.care.removal import prune as command

__all__ = ["command"]
