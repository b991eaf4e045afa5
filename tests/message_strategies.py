"""Hypothesis strategies for messages that cross between daemon and workers, made from what msgspec knows of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from msgspec import inspect as known

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBERS = st.integers(-(2**63), 2**64 - 1)
FLOATS = st.floats(allow_nan=False)
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | FLOATS | TEXT | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def messages(union: Any) -> st.SearchStrategy[Any]:
    """Any message of a direction."""
    return _values(known.type_info(union))


def _values(kind: known.Type) -> st.SearchStrategy[Any]:  # noqa: C901, PLR0912 - one branch for each kind
    match kind:
        case known.IntType():
            return NUMBERS
        case known.FloatType():
            return FLOATS
        case known.StrType():
            return TEXT
        case known.BytesType():
            return st.binary(max_size=8)
        case known.BoolType():
            return st.booleans()
        case known.NoneType():
            return st.none()
        case known.AnyType():
            return ANYTHING
        case known.LiteralType(values):
            return st.sampled_from(values)
        case known.EnumType(cls):
            return st.sampled_from(cls)
        case known.CustomType():
            return TEXT.map(lambda text: Path("/") / text.replace("\0", "") / "\udcff")
        case known.TupleType(parts):
            return st.tuples(*map(_values, parts))
        case known.VarTupleType(item):
            return st.lists(_values(item), max_size=2).map(tuple)
        case known.ListType(item) | known.CollectionType(item):
            return st.lists(_values(item), max_size=2)
        case known.DictType(key, value):
            return st.dictionaries(_values(key), _values(value), max_size=2)
        case known.UnionType(parts):
            return st.one_of(*map(_values, parts))
        case known.StructType(cls, fields) | known.DataclassType(cls, fields):
            return st.fixed_dictionaries({each.name: _values(each.type) for each in fields}).map(_made(cls))
    raise NotImplementedError(type(kind))


def _made(cls: type[Any]) -> Any:
    return lambda fields: cls(**fields)
