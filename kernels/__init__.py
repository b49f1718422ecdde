"""Backends: each runs the ops of a recorded `Program`. See `base.py` for the contract."""

# The folder stands at the top of the repository and installs as `localinfer.kernels`. Imported under
# another name it would be a second module with second copies of every class.
if __name__ != "localinfer.kernels":
    raise ImportError(f"import this package as localinfer.kernels, not as {__name__}")
