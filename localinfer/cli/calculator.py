"""A calculator for models: one expression, numbers and functions only, and an end to how large they may become."""

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

from localinfer.errors import LocalInferError

_LONGEST = 500  # characters of an expression
_MOST_BITS = 4096  # of a whole number
_LARGEST_FACTORIAL = 400
Number = int | float

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(math, name) for name in ("sqrt", "exp", "log10", "log2", "sin", "cos", "tan", "asin", "acos")},
    **{name: getattr(math, name) for name in ("atan", "atan2", "sinh", "cosh", "tanh", "floor", "ceil", "trunc")},
    **{name: getattr(math, name) for name in ("degrees", "radians", "hypot", "gcd", "log")},
    "ln": math.log,
    "abs": abs,
    "round": round,
    "min": min,
    "max": max,
}
_CONSTANTS = {"pi": math.pi, "e": math.e, "tau": math.tau}
_WRITTEN = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "^": "**"})


def calculate(expression: str) -> str:
    """The value of an expression, in words of digits. LocalInferError says what is wrong with it."""
    if len(expression) > _LONGEST:
        raise LocalInferError(f"the expression is longer than {_LONGEST} characters")
    try:
        tree = ast.parse(expression.translate(_WRITTEN).strip(), mode="eval")
        value = _value(tree.body)
    except SyntaxError as error:
        raise LocalInferError(f"{expression!r} is no expression: {error.msg}") from error
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise LocalInferError(f"{expression!r} has no value: {error or 'it nests too deep'}") from error
    except ZeroDivisionError as error:
        raise LocalInferError(f"{expression!r} divides by zero") from error
    except OverflowError as error:
        raise LocalInferError(f"{expression!r} is too large") from error
    if isinstance(value, int):
        return str(value)
    if not math.isfinite(value):
        raise LocalInferError(f"{expression!r} is too large, or no number")
    return f"{value:.15g}"


def _value(node: ast.expr) -> Number:
    value = _computed(node)
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise OverflowError
    return value


def _computed(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _divided(_value(left), _value(right))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            found: Number = _OPERATORS[type(op)](_value(left), _value(right))
            return found
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return _called(name, [_value(argument) for argument in arguments])
    raise ValueError(f"{ast.unparse(node)} is neither a number nor a known function")


def _divided(above: Number, below: Number) -> Number:
    whole = isinstance(above, int) and isinstance(below, int) and below != 0 and above % below == 0
    return above // below if whole else above / below


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and exponent > 0:
        if abs(base) > 1 and base.bit_length() * exponent > 2 * _MOST_BITS:
            raise OverflowError
        whole: int = base**exponent
        return whole
    found = float(base) ** exponent
    if isinstance(found, complex):
        raise ValueError("the root of a negative number")
    return found


def _called(name: str, arguments: list[Number]) -> Number:
    if name == "factorial":
        [number] = arguments
        if not isinstance(number, int) or not 0 <= number <= _LARGEST_FACTORIAL:
            raise ValueError(f"factorial takes a whole number from 0 to {_LARGEST_FACTORIAL}")
        return math.factorial(number)
    if name == "round" and len(arguments) == 2 and abs(arguments[1]) > 400:
        raise ValueError("round takes at most 400 digits")
    if name not in _FUNCTIONS:
        raise ValueError(f"there is no function {name}")
    found: Number = _FUNCTIONS[name](*arguments)
    return found
