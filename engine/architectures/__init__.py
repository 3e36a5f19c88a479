"""Architectures, one file each, found by `general.architecture`. To add one: copy `llama.py`."""
