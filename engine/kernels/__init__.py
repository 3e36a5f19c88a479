"""Tools for compiled code: lanes of vectors, and compiled results that are kept."""
