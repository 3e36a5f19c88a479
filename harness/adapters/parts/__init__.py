"""Parts that several adapters share."""
