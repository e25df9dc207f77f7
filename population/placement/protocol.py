"""What a member's trainer and engine are to whoever drives them, wherever they run."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol


class Placement(Protocol):
    """An object that runs elsewhere; its calls are answered one after the other, in the order they were made.

    A call on an object whose process is gone fails with `LostError`; any other error is the call's own.
    """

    @property
    def restartable(self) -> bool:
        """Whether another one can be built in the place of a lost one."""
        ...

    @property
    def gpus(self) -> Sequence[str]:
        """The GPUs that it was given, once it is built, each by a name of its own in the whole run. Empty where whoever
        placed it gives none out.
        """
        ...

    @property
    def ready(self) -> Future[Any]:
        """Resolves when the object is built, or fails as building it failed."""
        ...

    def call(self, method: str, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run `object.method(*args, **kwargs)`. Raises PlacementError once the placement is closed."""
        ...

    def attributes(self, *names: str) -> Future[dict[str, Any]]:
        """The object's attributes of these names."""
        ...

    def close(self, deadline_s: float = 10.0) -> bool:
        """Close the object after the calls made before, and end it; False when it was still busy at the deadline."""
        ...

    def kill(self) -> None:
        """End it at once; calls not yet answered fail with `LostError`."""
        ...
