"""Python values as JSON between a confined process and its tests, so that nothing but plain data crosses.

Numbers, texts and the usual containers arrive as exactly these built-in types, whatever subclass was sent: no object
of the other side, and so none of its methods, takes part in a comparison. Anything else is sent as a handle.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

# A JSON integer this long is the same everywhere; longer ones go as hexadecimal, which has no limit of digits.
_SHORT = 10**18


class Malformed(ValueError):
    """What came over the pipe is no value."""


def encode(value: Any, handle: Callable[[Any], int]) -> Any:
    """`value` as JSON data. handle(object) numbers what cannot cross; it may raise to refuse it."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        number = int(value)
        return number if -_SHORT < number < _SHORT else ["i", hex(number)]
    if isinstance(value, float):
        real = float(value)
        return real if math.isfinite(real) else ["f", repr(real)]
    if isinstance(value, str):
        return str(value)
    for tag, kind in (("l", list), ("t", tuple), ("s", set), ("z", frozenset)):
        if isinstance(value, kind):
            return [tag, *(encode(item, handle) for item in value)]
    if isinstance(value, dict):
        return ["d", *(encode(part, handle) for item in value.items() for part in item)]
    if isinstance(value, bytes | bytearray):
        return ["b" if isinstance(value, bytes) else "y", value.hex()]
    if isinstance(value, complex):
        return ["c", repr(value.real), repr(value.imag)]
    if isinstance(value, Fraction):
        return ["q", hex(value.numerator), hex(value.denominator)]
    if isinstance(value, Decimal):
        return ["n", str(value)]
    return ["h", handle(value)]


def decode(data: Any, known: Callable[[int], Any]) -> Any:
    """The value; known(number) is what a handle stands for. Raises Malformed."""
    try:
        return _decode(data, known)
    except Malformed:
        raise
    except (ValueError, TypeError, ArithmeticError, LookupError, RecursionError) as error:
        raise Malformed(f"{type(error).__name__}: {error}") from None


def _decode(data: Any, known: Callable[[int], Any]) -> Any:
    if data is None or isinstance(data, bool | int | float | str):
        return data
    tag, *parts = data
    containers: dict[str, Callable[[Any], Any]] = {"l": list, "t": tuple, "s": set, "z": frozenset}
    if tag in containers:
        return containers[tag]([_decode(part, known) for part in parts])
    if tag == "d":
        items = [_decode(part, known) for part in parts]
        return dict(zip(items[::2], items[1::2], strict=True))
    scalars: dict[str, Callable[..., Any]] = {
        "i": lambda text: int(text, 16),
        "f": float,
        "b": bytes.fromhex,
        "y": bytearray.fromhex,
        "c": lambda real, imaginary: complex(float(real), float(imaginary)),
        "q": lambda above, below: Fraction(int(above, 16), int(below, 16)),
        "n": Decimal,
        "h": known,
    }
    if tag not in scalars:
        raise Malformed(f"no value has the tag {tag!r}")
    return scalars[tag](*parts)


def to_line(message: Any) -> bytes:
    """One message as a line."""
    return json.dumps(message).encode("ascii") + b"\n"


def from_line(line: bytes) -> Any:
    """The message of a line. Raises Malformed."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"{type(error).__name__}: {error}") from None
