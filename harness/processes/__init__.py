"""Starts and ends processes, limits them, and exchanges messages with them."""
