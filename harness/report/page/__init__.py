"""report.html: a run as a single file that any browser opens without a network."""
