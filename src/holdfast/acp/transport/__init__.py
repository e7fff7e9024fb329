"""Lines, messages and who owes whom an answer: one conversation over a pair of streams."""
