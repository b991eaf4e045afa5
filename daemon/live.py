"""What is in effect now: the settings, and the models and names that they lead to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mlxd.daemon.catalog import Catalog
from mlxd.daemon.settings import Settings
from mlxd.registry.names import NameTable


@dataclass(frozen=True, slots=True)
class InEffect:
    """Settings and a catalog that belong together."""

    settings: Settings
    catalog: Catalog


class Live:
    """The one place that holds what is in effect; it changes whole, on the event loop. Any thread may read.

    Whoever needs the same settings over an await takes them once and keeps them.
    """

    def __init__(self, settings: Settings, catalog: Catalog) -> None:
        self._now = InEffect(settings, catalog)
        self.origins: Mapping[str, str] = {}
        """Where the value of each key comes from, as far as somebody said: "default", "file", a flag or a variable."""

    @property
    def now(self) -> InEffect:
        """Both, of one moment."""
        return self._now

    @property
    def settings(self) -> Settings:
        """The settings in effect."""
        return self._now.settings

    @property
    def catalog(self) -> Catalog:
        """The known models."""
        return self._now.catalog

    @property
    def names(self) -> NameTable:
        """What a name in a request means."""
        return self._now.catalog.names

    def swap(self, settings: Settings, catalog: Catalog) -> None:
        """From here on these are in effect."""
        self._now = InEffect(settings, catalog)
