"""One module per command of `holdfast`; `cli/app.py` loads only the one that is named."""
