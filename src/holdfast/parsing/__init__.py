"""Parsers of untrusted text, with bounded time and memory."""
