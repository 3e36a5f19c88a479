"""Architectures, one file each, found by `general.architecture`. To add one: copy `qwen3.py`."""
