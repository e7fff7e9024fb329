"""Somebody else's agent in our words: updates become drafts, and messages become prompts."""
