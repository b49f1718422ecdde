"""JSON files beside a model, which are not trusted either."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from localinfer.errors import FormatError, LocalInferError

_MAX_BYTES = 200_000_000  # the largest tokenizer.json of published models has some 35 MB


def read_json_object(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds; LocalInferError if it cannot be read, FormatError if it is something else."""
    try:
        if (size := path.stat().st_size) > _MAX_BYTES:
            raise FormatError(f"{path} has {size} bytes, too many for such a file", "download it again")
        found = json.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise LocalInferError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FormatError(f"{path} is not valid UTF-8 at byte {error.start}", "download it again") from error
    except RecursionError as error:
        raise FormatError(f"{path} nests too deep", "download it again") from error
    except json.JSONDecodeError as error:
        raise FormatError(
            f"{path} is not valid JSON: {error.msg} in line {error.lineno}, column {error.colno}", "download it again"
        ) from error
    except ValueError as error:  # a number with thousands of digits
        raise FormatError(f"{path} is not valid JSON: {error}", "download it again") from error
    if not isinstance(found, dict):
        raise FormatError(f"{path} should hold a JSON object, but holds a {type(found).__name__}", "download it again")
    return found
