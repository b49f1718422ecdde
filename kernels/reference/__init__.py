"""The reference backend: every op in plain float32 torch. It is the definition of correct for all others."""
