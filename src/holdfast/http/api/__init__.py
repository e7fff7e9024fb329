"""Sessions that are bound to a repository, under `/api`."""
