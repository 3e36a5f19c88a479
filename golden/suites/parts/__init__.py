"""What several kinds of goldens share."""
