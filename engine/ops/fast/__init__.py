"""The ops in compiled form. They never judge, and tests compare them with the formulas."""
