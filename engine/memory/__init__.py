"""What a context remembers: batches into ubatches, positions in cells, and their numbers."""
