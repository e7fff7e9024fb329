"""Built-in runtime: calls a model, runs its tools and emits drafts. Has no store access."""
