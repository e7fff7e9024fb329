"""A house behind a server: the services' verbs over `/v1`, in the domain's own values."""
