"""Agent frameworks whose sessions Holdfast stores; one module for each, and what they share."""
