"""Importers of data from other programs and older versions."""
