"""What compiled code is made of: lanes of vectors, and compiled results that are kept."""
