"""The protocol of programs under test: questions and possible answers (documented in
PROTOCOL.md)."""
