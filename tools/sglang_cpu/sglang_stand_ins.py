"""Import stand-ins for two packages that SGLang imports and does not use where it serves text without a GPU.

`torchvision` on the package index is built for CUDA builds of torch, `sgl_kernel` holds GPU kernels. `make test-sglang`
installs this file into .venv-sglang, where a .pth file imports it whenever that interpreter starts: the processes that
a server spawns have the stand-ins too. A name that is really used says so.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PACKAGES = ("torchvision", "sgl_kernel")


class _Named(type):
    """Any attribute of a stand-in class is another one, so that constants and nested names can be mentioned."""

    def __getattr__(cls, name: str) -> Any:
        return _stand_in(f"{cls.__module__}.{cls.__name__}", name)

    def __call__(cls, *_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError(f"{cls.__module__}.{cls.__name__} is a stand-in: SGLang's CPU environment does not have it")


def _stand_in(owner: str, name: str) -> Any:
    """A class can be a base, an annotation or an argument of isinstance, which is all that an import asks of it."""
    if name.startswith("__"):
        raise AttributeError(f"{owner} has no attribute {name!r}")
    return _Named(name, (), {"__module__": owner})


class _StandIn(ModuleType):
    __path__: Sequence[str] = ()
    __version__ = "0"

    def __getattr__(self, name: str) -> Any:
        return _stand_in(self.__name__, name)


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.partition(".")[0] in PACKAGES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run: the module makes its attributes as they are asked for."""


sys.meta_path.insert(0, _Finder())
