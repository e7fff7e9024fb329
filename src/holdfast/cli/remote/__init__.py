"""A house behind a server: the services' verbs, asked for over `/v1`, in the domain's own values."""
