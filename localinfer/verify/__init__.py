"""Does a quantized file come from the weights that it claims? Hashes, re-derivation, and rules that blocks obey."""
