"""Ports: narrow interfaces to the outside. Adapters implement them, services use them."""
