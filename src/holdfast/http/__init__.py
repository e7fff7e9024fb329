"""The HTTP API and the web UI."""
