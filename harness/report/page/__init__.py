"""report.html: a run as one file that a browser opens from anywhere, with no need of a network."""
