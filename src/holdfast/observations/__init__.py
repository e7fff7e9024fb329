"""Observed history: claims about sessions and their work, snapshots and timelines."""
