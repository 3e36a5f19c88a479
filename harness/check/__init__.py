"""The work of `lockstep check`, from a user's arguments to the verdicts of suites."""
