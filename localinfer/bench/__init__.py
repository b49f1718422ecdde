"""Measuring how fast a model runs here."""
