"""How good a model is, and how far it is from the one that it was made of."""
