"""Tools for compiled code: lanes of vectors, and a store of compiled results."""
