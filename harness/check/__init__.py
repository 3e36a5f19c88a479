"""What `lockstep check` runs, from what a user names to the verdicts of suites."""
