"""Care of what there is: counted, compared, copied, pruned, sealed again."""
