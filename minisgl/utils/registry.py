"""Names to choose from, for example on the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Registry(Generic[T]):
    """Implementations by name; `type` says what they implement."""

    def __init__(self, type: str) -> None:
        self._type = type
        self._items: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that files an implementation under `name`."""

        def add(item: T) -> T:
            assert name not in self._items, f"{self._type} {name!r} exists"
            self._items[name] = item
            return item

        return add

    def __getitem__(self, name: str) -> T:
        self.assert_supported(name)
        return self._items[name]

    def supported_names(self) -> list[str]:
        return list(self._items)

    def assert_supported(self, names: str | Iterable[str]) -> None:
        """Raise ValueError, with the known names, for one that is not known."""
        for name in [names] if isinstance(names, str) else names:
            if name not in self._items:
                known = ", ".join(self._items)
                raise ValueError(
                    f"{self._type} {name!r} is not supported; use one of {known}"
                )
