"""Reads facts from JSON, whoever wrote it."""

import types
import typing
from dataclasses import fields, is_dataclass
from typing import Any


def decode(kind: Any, data: object) -> Any:  # noqa: ANN401 - the type asked for is only known at run time
    """Read plain JSON `data` as a `kind` of the schema; whatever has another type becomes the field's default."""
    values = data if isinstance(data, dict) else {}
    hints = typing.get_type_hints(kind)
    known = {f.name: _convert(hints[f.name], values[f.name]) for f in fields(kind) if f.name in values}
    return kind(**{name: value for name, value in known.items() if value is not _WRONG})


_WRONG = object()


def _convert(hint: Any, value: object) -> object:  # noqa: ANN401
    if is_dataclass(hint):
        return decode(hint, value)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return None if value is None else _convert(arguments[0], value)
    if origin is tuple:
        items = [_convert(arguments[0], item) for item in value] if isinstance(value, list) else []
        return tuple(item for item in items if item is not _WRONG)
    if origin is dict:
        pairs = value.items() if isinstance(value, dict) else ()
        read = {k: _convert(arguments[1], v) for k, v in pairs if isinstance(k, str)}
        return {k: v for k, v in read.items() if v is not _WRONG}
    if hint is float and type(value) is int:
        return float(value) if abs(value) < 2**53 else _WRONG
    return value if type(value) is hint else _WRONG
