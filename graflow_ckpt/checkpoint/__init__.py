"""From values to trios and back: codec, pickles, digests, seals."""
