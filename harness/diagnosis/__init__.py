"""Which known mistake makes the very answers that an engine gives."""
