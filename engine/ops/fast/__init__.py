"""The ops in compiled form. They are never used to judge; tests compare them with the formulas."""
