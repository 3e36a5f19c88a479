"""The protocol of programs under test: questions and their possible answers (see PROTOCOL.md)."""
