"""Making smaller files of models: recipes, writers, mixed precision, provenance."""
