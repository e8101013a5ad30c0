"""What a person sees: the terminal, artifacts in Prefect, tables, pictures."""
