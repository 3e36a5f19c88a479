"""Runs that an engine wrote to a folder, under its own names or llama.cpp's."""
