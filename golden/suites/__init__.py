"""Kinds of goldens, one module each, which makes, checks and replays the kind."""
