"""Memory of a context: splits batches into ubatches, and stores tokens' positions and data in
cells.
"""
