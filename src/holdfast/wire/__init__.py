"""JSON forms of the domain's nouns, written once: used by HTTP, the client and the command line."""
