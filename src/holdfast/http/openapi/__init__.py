"""The OpenAPI 3.1 description of every route, generated from the route table."""
