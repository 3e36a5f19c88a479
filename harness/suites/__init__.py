"""What `lockstep check` compares, one file per suite. To add one: copy `tokens.py`."""
