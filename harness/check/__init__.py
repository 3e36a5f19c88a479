"""The work of `lockstep check`, from what a user names to the verdicts of suites."""
