"""Parts that several suites share."""
