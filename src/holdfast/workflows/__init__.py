"""Workflows: model, checks, and export of a session."""
