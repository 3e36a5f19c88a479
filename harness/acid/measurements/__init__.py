"""One class for each test: what it sees, what is right, what known mistakes make of it."""
