"""Loops of the user's own: Python functions that run turns, recorded and replayed."""
