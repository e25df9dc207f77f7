"""What runs inside an actor: the object that was placed there, its calls, and tensors on their way between actors.

Imports no Ray: where tensors are put and taken from is told by whoever imports it.
"""

from __future__ import annotations

import os
import pickle
import socket
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from population.errors import LostError, PlacementError

# numpy has no bfloat16: a tensor of a type that it lacks travels as integers of the same width.
CARRIERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
MARKS = (":job_id:", ":actor_name:", ":task_name:")


@dataclass(frozen=True)
class Packed:
    """Named tensors as numpy arrays, each with the name of its torch type."""

    arrays: Mapping[str, tuple[NDArray[Any], str]]

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor]) -> Packed:
        """The tensors' bits; a CPU tensor shares its memory."""
        return cls({name: (_array(tensor), str(tensor.dtype)) for name, tensor in tensors.items()})

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors, to be read only: they share the arrays' memory, which other processes may read too."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return {
                name: torch.from_numpy(array).view(getattr(torch, kind.removeprefix("torch.")))
                for name, (array, kind) in self.arrays.items()
            }


@dataclass(frozen=True)
class Parcel:
    """A claim on `Packed` tensors that stay on their node until another actor, or the driver, opens it."""

    reference: Any


@dataclass(frozen=True)
class Failure:
    """An exception of the object's own, as bytes where it survives pickling, with the actor's traceback."""

    error: bytes
    trace: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        trace = "".join(traceback.format_exception(error))
        try:
            content = pickle.dumps(error)
            pickle.loads(content)
        except Exception:
            content = pickle.dumps(PlacementError(f"{type(error).__name__}: {error}"))
        return cls(content, trace)

    def restored(self) -> Exception:
        """The exception; its notes hold the traceback."""
        error: Exception = pickle.loads(self.error)
        error.add_note(f"in the actor:\n{self.trace}")
        return error


@dataclass(frozen=True)
class Birth:
    """Where an actor runs: its node's address and id, the GPUs of that node that it was given, its process, the file of
    its standard error ("" if none).
    """

    address: str
    node: str
    gpus: tuple[str, ...]
    pid: int
    errors: str


class Host:
    """Holds one object. Methods answer a value or a `Failure`, so an exception of Ray itself always means a loss.

    `put` keeps a value on this node and gives a reference to it; `get` is its inverse; `where` gives the node's address
    and id, and the GPUs.
    """

    def __init__(
        self,
        put: Callable[[Any], Any],
        get: Callable[[Any], Any],
        where: Callable[[], tuple[str, str, tuple[str, ...]]],
    ) -> None:
        self._put, self._get, self._where = put, get, where
        self._object: Any = None

    def birth(self) -> Birth:
        """Where this is. Answering it at all means that the process has started."""
        errors = os.readlink("/proc/self/fd/2") if os.path.islink("/proc/self/fd/2") else ""
        return Birth(*self._where(), os.getpid(), errors)

    def free_port(self) -> int:
        """A port of this node that nobody listens on at the moment."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return int(probe.getsockname()[1])

    def build(self, threads: int, cls: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make the object, on the thread that will run its calls."""
        torch.set_num_threads(threads)
        try:
            self._object = cls(*args, **kwargs)
        except Exception as error:
            return Failure.of(error)

    def call(self, keep: bool, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`object.method(*args, **kwargs)`; its result only where it is to be kept."""
        try:
            given = [opened(value, self._get) for value in args]
            named = {key: opened(value, self._get) for key, value in kwargs.items()}
            found = getattr(self._object, method)(*given, **named)
            return sealed(found, self._put) if keep else None
        except Exception as error:
            return Failure.of(error)

    def call_shared(self, keep: bool, method: str, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        """As `call`, of arguments that all ranks take from one place."""
        return self.call(keep, method, *arguments)

    def attributes(self, names: tuple[str, ...]) -> Any:
        """Values of the object's attributes."""
        try:
            return {name: getattr(self._object, name) for name in names}
        except Exception as error:
            return Failure.of(error)

    def ping(self) -> None:
        """Answers as long as the process does, on a thread of its own."""

    def end(self) -> None:
        """Close the object, if it can be closed."""
        if hasattr(self._object, "close"):
            self._object.close()


def sealed(value: Any, put: Callable[[Any], Any]) -> Any:
    """Tensors by name as a parcel; anything else as it is."""
    if isinstance(value, dict) and value and all(isinstance(part, torch.Tensor) for part in value.values()):
        return Parcel(put(Packed.of(value)))
    return value


def opened(value: Any, get: Callable[[Any], Any]) -> Any:
    """The tensors of a parcel; anything else as it is. LostError when they went with the process that held them."""
    if not isinstance(value, Parcel):
        return value
    try:
        packed: Packed = get(value.reference)
    except Exception as error:
        raise LostError(f"tensors that were handed over are gone ({type(error).__name__})") from None
    return packed.tensors()


def last_lines(path: str, count: int = 5, longest: int = 8192) -> str:
    """The end of an actor's log as one line, without the marks that Ray sets there; "" where there is none."""
    try:
        with Path(path).open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - longest))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return " | ".join([line.strip() for line in lines if line.strip() and not line.startswith(MARKS)][-count:])


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    plain = tensor.detach().cpu().contiguous()
    try:
        return plain.numpy()
    except TypeError:
        return np.asarray(plain.view(CARRIERS[plain.element_size()]).numpy())
