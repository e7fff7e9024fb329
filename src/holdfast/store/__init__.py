"""SQL and row mapping, one file per table."""
