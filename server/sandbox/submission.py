"""The confined process: it runs one piece of unread code, as a program or as functions for others to call.

Standard input: eight hexadecimal digits and an order of that length (JSON: `code`, `mode`, `cpu_s`, `memory_bytes`,
`parent`), then the program's input, or one request a line. Standard output: `READY` before the code runs, then the
program's output, or one reply a line.
Nothing secret is ever in this process: no expected result, no credential, no other answer.
"""

from __future__ import annotations

import builtins
import json
import os
import sys
import types
from typing import Any

from server.sandbox.confine import CannotConfine, confine, die_with_parent
from server.sandbox.values import decode, encode, from_line, to_line

HEADER_DIGITS = 8
READY = b"ready\n"
RAISED_STATUS = 1
TEXT_CHARACTERS = 500
MUTABLE = (list, dict, set, bytearray)


def main() -> None:
    """Read the order, be confined, obey."""
    order = json.loads(_exactly(int(_exactly(HEADER_DIGITS), 16)))
    die_with_parent(order["parent"])
    program = order["mode"] == "program"
    requests, replies = (0, 1) if program else _own_pipes()
    try:
        confine(cpu_s=order["cpu_s"], memory_bytes=order["memory_bytes"], readable=[sys.prefix, sys.base_prefix])
    except CannotConfine as error:
        _send(replies, f"{error}\n".encode())
        return
    _send(replies, READY)
    if program:
        run_program(order["code"])
    serve(order["code"], requests, replies)


def run_program(code: str) -> None:
    """Run the code as a script; its exit status is the process's, 1 where it raised."""
    status: Any = 0
    try:
        exec(compile(code, "<submission>", "exec"), _module("__main__").__dict__)
    except SystemExit as end:
        status = end.code
    except BaseException:
        status = RAISED_STATUS
    try:
        sys.stdout.flush()
    finally:
        os._exit(status & 255 if isinstance(status, int) else 0 if status is None else RAISED_STATUS)


def serve(code: str, requests: int, replies: int) -> None:
    """Run the code's definitions, then answer requests about them until the pipe ends."""
    server = _Server()
    module = _module("submission")
    _send(replies, to_line(server.reply(lambda: exec(compile(code, "<submission>", "exec"), module.__dict__))))
    with os.fdopen(requests, "rb") as lines:
        for line in lines:
            _send(replies, to_line(server.answer(module, from_line(line))))
    os._exit(0)


class _Server:
    """Objects the other side holds handles of, and what it may do with them."""

    def __init__(self) -> None:
        self._objects: list[Any] = []

    def answer(self, module: types.ModuleType, request: dict[str, Any]) -> dict[str, Any]:
        """ops: "names" ({name: value} of those that exist); on a handle "call", "get", and "special", a method of the
        type such as __len__.
        """
        if request["op"] == "names":
            return self.reply(lambda: {n: vars(module)[n] for n in request["names"] if n in vars(module)})
        target = self._objects[request["on"]]
        arguments = [decode(item, self._objects.__getitem__) for item in request.get("args", [])]
        keywords = {key: decode(item, self._objects.__getitem__) for key, item in request.get("kwargs", {}).items()}
        if request["op"] == "get":
            return self.reply(lambda: getattr(target, request["name"]))
        if request["op"] == "special":
            method = bool if request["name"] == "__bool__" else getattr(type(target), request["name"], _undefined)
            return self.reply(lambda: method(target, *arguments))
        reply = self.reply(lambda: target(*arguments, **keywords))
        if any(isinstance(argument, MUTABLE) for argument in arguments):
            # A function may sort its list in place: what became of the arguments goes back too.
            reply["arguments"] = self.reply(lambda: arguments).get("value")
        return reply

    def reply(self, work: Any) -> dict[str, Any]:
        """The value of `work()`, or what it raised: its built-in classes, most special first, and its text."""
        try:
            return {"value": encode(work(), self._handle)}
        except BaseException as error:
            names = [kind.__name__ for kind in type(error).__mro__ if getattr(builtins, kind.__name__, None) is kind]
            return {"raised": names, "text": _text(error)}

    def _handle(self, value: Any) -> int:
        self._objects.append(value)
        return len(self._objects) - 1


def _undefined(target: Any, *_arguments: Any) -> Any:
    raise TypeError(f"{type(target).__name__} does not support this")


def _text(error: BaseException) -> str:
    try:
        return str(error)[:TEXT_CHARACTERS]
    except BaseException:  # the text is made by the unread code
        return ""


def _module(name: str) -> types.ModuleType:
    """An empty module that dataclasses and the like find by its name."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    return module


def _own_pipes() -> tuple[int, int]:
    """Requests and replies on descriptors of their own; what the code reads is empty, what it prints goes nowhere."""
    requests, replies = os.dup(0), os.dup(1)
    for mode, descriptor in ((os.O_RDONLY, 0), (os.O_WRONLY, 1)):
        nowhere = os.open(os.devnull, mode)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
    return requests, replies


def _exactly(count: int) -> bytes:
    """`count` bytes of standard input and not one more: the rest belongs to the program."""
    parts = []
    while count > 0:
        part = os.read(0, count)
        if not part:
            os._exit(0)
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _send(descriptor: int, line: bytes) -> None:
    unsent = memoryview(line)
    while unsent:
        unsent = unsent[os.write(descriptor, unsent) :]
