"""Runs every wrong engine through `check` and `bisect`, and counts how many are found, and
where."""
