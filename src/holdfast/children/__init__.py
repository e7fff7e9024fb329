"""Agents that call agents: sessions that a session opens, and their answers."""
