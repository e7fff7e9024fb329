"""The Agent Client Protocol, version 1: a client for external agents and a server for editors."""
