"""The description of every route, made from the table itself (OpenAPI 3.1)."""
