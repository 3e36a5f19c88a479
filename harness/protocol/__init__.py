"""Any program under test: what it is sent and what it may answer (in words: PROTOCOL.md)."""
