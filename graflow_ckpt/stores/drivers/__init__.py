"""Places of keyed stores: a folder each, with its driver, its store and its names."""
