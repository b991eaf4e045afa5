"""What can be wrong with a GGUF import.

GgufError
├── NotGguf             the source is something else
├── CorruptGguf         the file is cut off or contradicts itself
│   └── MissingMetadata
├── UnsupportedGguf     the file is sound, but not of a supported kind
└── DestinationExists   the output folder is taken
"""

from __future__ import annotations


class GgufError(Exception):
    """Base of everything that can be wrong with an import."""


class NotGguf(GgufError):
    """The source is no GGUF file, or an archive that does not hold exactly one."""


class CorruptGguf(GgufError):
    """The file is cut off or contradicts itself."""


class MissingMetadata(CorruptGguf):
    """The file lacks a metadata key that the import needs; `key` names it."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the file has no metadata key {key}; it cannot be imported without it")
        self.key = key


class UnsupportedGguf(GgufError):
    """A sound file that holds something which is not supported; the message says what is."""


class DestinationExists(GgufError):
    """The output folder exists and is not empty."""
