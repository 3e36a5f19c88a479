"""The ops again, compiled: it never judges, and is held against the formulas."""
