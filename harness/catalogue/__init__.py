"""Every wrong engine through `check` and `bisect`: how many are found, and where."""
