"""Zones (S4): files of an agent's active zone, its archives, replay."""
