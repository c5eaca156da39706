"""Commands that look after a store: deletion, copies, keys, databases."""
