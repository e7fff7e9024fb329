"""Our own way to run a turn: asks a model and yields drafts. It knows no session and no store."""
