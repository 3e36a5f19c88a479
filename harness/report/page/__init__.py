"""report.html: a run as a single file that a browser opens anywhere, without a network."""
