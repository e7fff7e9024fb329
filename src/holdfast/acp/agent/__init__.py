"""Holdfast as an agent: an editor's sessions, prompts and questions."""
