"""Tools for suites: two engines, and ways to ask them once or repeatedly."""
