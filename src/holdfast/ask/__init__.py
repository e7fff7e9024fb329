"""`ask`, `stream` and `record`: the short way to an answer, written once for every `Holdfast`."""
