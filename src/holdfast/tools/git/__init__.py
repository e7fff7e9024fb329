"""The git tools: git is run so that it executes nothing from the repository."""
