"""Runs that an engine stored in a folder, under its own tensor names or llama.cpp's."""
