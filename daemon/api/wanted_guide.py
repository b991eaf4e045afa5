"""The form that a client wants its answer to have, and the field that asked for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from mlxd.daemon.api.refusals import InvalidField
from mlxd.engines.errors import InvalidRequest
from mlxd.engines.guidance import MAX_GUIDE_CHARS, check_guide
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import Guide, GuideKind

ANY_OBJECT = Guide(GuideKind.JSON_SCHEMA, '{"type":"object"}')


@dataclass(frozen=True, slots=True)
class WantedGuide:
    """A guide and the field that asked for it."""

    guide: Guide
    param: str

    def check(self, tokenizer: Tokenizer) -> Guide:
        """The guide, once it is known to compile; takes a while, so not for the event loop. Raises InvalidField."""
        try:
            return check_guide(tokenizer, self.guide)
        except InvalidRequest as error:
            raise InvalidField(f"{self.param}: {error}", self.param) from error


def schema_guide(schema: Mapping[str, Any], param: str) -> WantedGuide:
    """JSON that a JSON Schema describes. Raises InvalidField for one that is too long."""
    text = msgspec.json.encode(schema).decode()
    check_size(len(text), param)
    return WantedGuide(Guide(GuideKind.JSON_SCHEMA, text), param)


def check_size(length: int, param: str) -> None:
    """Raise InvalidField for a form of more characters than are taken."""
    if length > MAX_GUIDE_CHARS:
        raise InvalidField(f"{param}: at most {MAX_GUIDE_CHARS} characters are taken", param)
