"""Importers: what other programs and older versions left behind, brought into the store."""
