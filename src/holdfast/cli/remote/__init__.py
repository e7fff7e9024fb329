"""Remote services: the service methods over `/v1`, with domain values."""
