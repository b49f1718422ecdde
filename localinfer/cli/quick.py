"""Skips Typer's checks for values that need none.

Typer converts values with pydantic, whose import takes as long as loading a small model. A value that is plainly right
(a text for a text, digits for a whole number, an option that is not given) is converted here; all else, and so every
error, is left to Typer. With versions of Typer that do it in another way this saves less and changes nothing.
"""

import inspect
from collections.abc import Callable
from typing import Any, get_args


def skip_needless_checks(command: Any, function: Callable[..., None] | None = None) -> None:
    """Gives each parameter of a command, which Typer made from `function`, a shortcut for its type."""
    annotations = {p.name: p.annotation for p in inspect.signature(function).parameters.values()} if function else {}
    for parameter in command.params:
        kinds = get_args(annotations.get(parameter.name))[:1]  # of Annotated[kind, typer.Option(...)]
        kinds = get_args(kinds[0]) or kinds if kinds else ()  # of kind | None
        parameter.process_value = _shortcut(parameter, parameter.process_value, kinds)
    help_option = command.get_help_option

    def quick_help_option(context: Any) -> Any:
        option = help_option(context)
        if option is not None:
            option.process_value = _shortcut(option, option.process_value, ())
        return option

    command.get_help_option = quick_help_option


def _shortcut(parameter: Any, checked: Callable[[Any, Any], Any], kinds: tuple[Any, ...]) -> Callable[[Any, Any], Any]:
    # Newer versions of Typer keep the bounds in the parameter, older ones in its type.
    bounds = parameter if hasattr(parameter, "min") else getattr(parameter, "type", None)
    lowest, highest = getattr(bounds, "min", None), getattr(bounds, "max", None)

    def in_range(number: float) -> bool:
        return (lowest is None or number >= lowest) and (highest is None or number <= highest)

    def process_value(context: Any, value: Any) -> Any:
        if not parameter.required:
            if parameter.multiple and not value:
                return ()
            if value is None or value is False or value == parameter.default:
                return value
        if isinstance(value, str):
            if str in kinds:
                return value
            if int in kinds and value.isascii() and value.isdigit() and len(value) < 20 and in_range(int(value)):
                return int(value)
            if float in kinds and value.isascii() and value.replace(".", "", 1).isdigit() and in_range(float(value)):
                return float(value)
        return checked(context, value)

    return process_value
