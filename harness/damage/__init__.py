"""Models of every architecture with one element changed: is the tensor named?"""
