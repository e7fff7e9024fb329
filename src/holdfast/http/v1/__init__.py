"""Agents, sessions, messages and events under `/v1`."""
