"""What goes over the wire, as msgspec structs: checked when it comes in, described in /openapi.json."""
