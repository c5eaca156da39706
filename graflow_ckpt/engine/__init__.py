"""The engine: claims a spec, invokes its body, commits the outcome, cuts when it is due."""
