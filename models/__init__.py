"""Model families: each records itself once, at load, as a `Program`."""

if __name__ != "localinfer.models":
    raise ImportError(f"import this package as localinfer.models, not as {__name__}")
