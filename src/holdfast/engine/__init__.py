"""Built-in runtime: calls a model, runs its tools and yields drafts. Has no store access."""
