"""The layers that are wrapped around a store, and the keys and patience that it needs."""
