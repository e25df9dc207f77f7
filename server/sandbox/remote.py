"""Functions and objects of a confined process, as tests use them: calls cross the pipe, plain values come back.

No comparison or arithmetic between a test's own value and one of the confined process is ever decided over there: an
object that calls itself equal to everything is equal to nothing.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

from server.sandbox.process import Confined, Failed
from server.sandbox.values import Malformed, decode, encode, from_line, to_line

# Other names of this form are protocols, by which a library such as numpy would believe an address in memory.
READABLE = ("__name__", "__qualname__", "__module__", "__dict__", "__annotations__", "__wrapped__", "__version__")
# Methods of a type that tests may use on an object: with plain arguments, and only between two such objects.
ON_ONE = ("__len__", "__getitem__", "__setitem__", "__delitem__", "__iter__", "__next__", "__bool__", "__neg__")
ON_TWO = ("__lt__", "__le__", "__gt__", "__ge__", "__add__", "__sub__", "__mul__", "__truediv__", "__matmul__")
EXCEPTIONS = {
    name: kind for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)
}


class Link:
    """The conversation with one confined process."""

    def __init__(self, process: Confined) -> None:
        self._process = process
        self.used = False
        self._receive(process.ask(b""))

    def names(self, wanted: Sequence[str]) -> dict[str, Any]:
        """{name: value or Remote} of those the submission defines."""
        found = self._ask({"op": "names", "names": list(wanted)})
        if not isinstance(found, dict) or not set(found) <= set(wanted):
            raise Failed("the submission replied what is no answer")
        self.used = any(not isinstance(value, Remote) for value in found.values())
        return found

    def call(self, on: int, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
        """The value of a call; mutable arguments are changed here as they were there."""
        self.used = True
        sent = [encode(argument, _handle) for argument in arguments]
        named = {key: encode(value, _handle) for key, value in keywords.items()}
        reply = self._receive_raw(self._process.ask(to_line({"op": "call", "on": on, "args": sent, "kwargs": named})))
        if reply.get("arguments") is not None:
            self._change(arguments, self._decode(reply["arguments"]))
        return self._value(reply)

    def get(self, on: int, name: str) -> Any:
        """An attribute of an object."""
        self.used = True
        return self._ask({"op": "get", "on": on, "name": name})

    def special(self, on: int, name: str, arguments: Sequence[Any]) -> Any:
        """The value of a method of an object's type."""
        self.used = True
        return self._ask({"op": "special", "on": on, "name": name, "args": [encode(a, _handle) for a in arguments]})

    def _ask(self, request: dict[str, Any]) -> Any:
        return self._receive(self._process.ask(to_line(request)))

    def _receive(self, line: bytes) -> Any:
        return self._value(self._receive_raw(line))

    def _receive_raw(self, line: bytes) -> dict[str, Any]:
        try:
            reply = from_line(line)
        except Malformed as error:
            raise Failed("the submission replied what is no answer") from error
        if not isinstance(reply, dict):
            raise Failed("the submission replied what is no answer")
        return reply

    def _value(self, reply: dict[str, Any]) -> Any:
        if "raised" not in reply:
            return self._decode(reply.get("value"))
        raise _exception(reply["raised"], reply.get("text"))

    def _decode(self, data: Any) -> Any:
        try:
            return decode(data, lambda number: Remote(self, number))
        except Malformed as error:
            raise Failed("the submission replied what is no value") from error

    def _change(self, arguments: Sequence[Any], after: Any) -> None:
        """Give lists, dicts and sets the content they have over there."""
        if not isinstance(after, list) or len(after) != len(arguments):
            raise Failed("the submission replied what is no answer")
        for own, new in zip(arguments, after, strict=True):
            if type(own) is not type(new):
                continue
            if isinstance(own, list | bytearray):
                own[:] = new
            elif isinstance(own, dict | set):
                own.clear()
                own.update(new)


class Remote:
    """One function, class or object of a confined process."""

    __slots__ = ("_link", "_number")

    def __init__(self, link: Link, number: int) -> None:
        if type(number) is not int:
            raise Malformed("a handle is a number")
        self._link = link
        self._number = number

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._link.call(self._number, arguments, keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__") and name not in READABLE:
            raise AttributeError(f"tests cannot take {name} from the submission")
        return self._link.get(self._number, name)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Remote):
            return False
        if self._number == other._number:
            return True
        # Over there NotImplemented is an object, and so a Remote; only True is True.
        return self._link.special(self._number, "__eq__", (other,)) is True

    def __hash__(self) -> int:
        return hash(self._number)

    def __str__(self) -> str:
        return str(self._link.special(self._number, "__str__", ()))

    def __repr__(self) -> str:
        return str(self._link.special(self._number, "__repr__", ()))


def _on_one(name: str) -> Callable[..., Any]:
    def method(self: Remote, *arguments: Any) -> Any:
        return self._link.special(self._number, name, arguments)

    return method


def _on_two(name: str) -> Callable[[Remote, object], Any]:
    def method(self: Remote, other: object) -> Any:
        return self._link.special(self._number, name, (other,)) if isinstance(other, Remote) else NotImplemented

    return method


for _name in ON_ONE:
    setattr(Remote, _name, _on_one(_name))
for _name in ON_TWO:
    setattr(Remote, _name, _on_two(_name))


def _handle(value: Any) -> int:
    if isinstance(value, Remote):
        return value._number
    raise TypeError(
        f"tests cannot give a {type(value).__name__} to the submission, only plain data and its own objects"
    )


def _exception(names: Any, text: Any) -> Exception:
    """The most special built-in exception among `names`."""
    said = names if isinstance(names, list) else []
    known = [name for name in said if isinstance(name, str) and name in EXCEPTIONS]
    message = text if isinstance(text, str) else ""
    try:
        return EXCEPTIONS[known[0]](message)
    except (IndexError, TypeError):  # none of ours, or one that is not made of a text
        return RuntimeError(message)
