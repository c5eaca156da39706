"""Commands that look after a store: what goes, what travels, keys, databases."""
