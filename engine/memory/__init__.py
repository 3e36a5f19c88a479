"""Memory of a context: batches become ubatches, positions lie in cells, cells have numbers."""
