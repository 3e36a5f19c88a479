"""Code shared by several kinds of goldens."""
