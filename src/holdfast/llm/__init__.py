"""Language models behind the `Llm` port. Only this package imports vendor packages."""
