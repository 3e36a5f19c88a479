"""Tools of the suites: two engines and the ways to ask them, once or repeatedly."""
