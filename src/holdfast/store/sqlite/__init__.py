"""The embedded store: SQLite, encrypted at rest, one writer, group commit."""
