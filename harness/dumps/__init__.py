"""Runs that an engine stored in a folder, under its own names or llama.cpp's."""
