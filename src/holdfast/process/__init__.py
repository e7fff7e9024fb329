"""Processes: start, confine, supervise and end them. Shared by `tools` and `acp`; knows neither."""
