"""Language models behind the `Llm` port. Vendor packages are imported here and nowhere else."""
