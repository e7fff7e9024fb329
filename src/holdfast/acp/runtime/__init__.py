"""Somebody else's agent behind a session: its program, its turns, and what it asks of us."""
