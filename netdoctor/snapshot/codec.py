"""Dataclasses from plain JSON data, by their type hints: the inverse of `model.plain` for the shapes that runs use."""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from netdoctor.model import Unavailable, unavailable_in

T = TypeVar("T")


class MalformedError(ValueError):
    """Data that does not have the shape of the dataclass."""


def build(kind: type[T], data: Any) -> T:
    """An instance of the dataclass `kind` from `data`.  Unknown keys are ignored; raises MalformedError for a wrong shape."""
    got = _value(kind, data, kind.__name__)
    assert isinstance(got, kind)
    return got


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _value(hint: Any, data: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    if hint is Any:
        return data
    if origin in (typing.Union, types.UnionType):
        return _union(typing.get_args(hint), data, where)
    if origin in (tuple, frozenset):
        return _items(hint, data, where)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(hint, data, where)
    return _single(hint, data, where)


def _single(hint: type, data: Any, where: str) -> Any:
    if isinstance(data, str) and (parse := _parser(hint)) is not None:
        try:
            return parse(data)
        except ValueError as error:
            raise MalformedError(f"{where}: {error}") from None
    if dataclasses.is_dataclass(hint):
        return _dataclass(hint, data, where)
    if isinstance(data, bool) and hint is not bool:  # which Python takes for an int
        raise MalformedError(f"{where}: expected {hint.__name__}, found bool")
    if hint is float and isinstance(data, int):
        return float(data)
    if isinstance(data, hint):
        return data
    raise MalformedError(f"{where}: expected {hint.__name__}, found {type(data).__name__}")


def _items(hint: Any, data: Any, where: str) -> Any:
    if not isinstance(data, list):
        raise MalformedError(f"{where}: expected a list")
    kind, args = typing.get_origin(hint), typing.get_args(hint)
    if kind is frozenset or Ellipsis in args:
        return kind(_value(args[0], item, where) for item in data)
    if len(args) != len(data):
        raise MalformedError(f"{where}: expected {len(args)} items")
    return tuple(_value(arg, item, where) for arg, item in zip(args, data, strict=True))


def _mapping(hint: Any, data: Any, where: str) -> dict[Any, Any]:
    if not isinstance(data, dict):
        raise MalformedError(f"{where}: expected an object")
    key, value = typing.get_args(hint)
    try:
        return {(int(k) if key is int else _value(key, k, where)): _value(value, v, where) for k, v in data.items()}
    except ValueError as error:  # MalformedError is one
        raise MalformedError(f"{where}: {error}") from None


def _parser(hint: type) -> Callable[[str], Any] | None:
    """How a value that is recorded as its text is read."""
    return hint if issubclass(hint, enum.Enum) else getattr(hint, "parse", None)


def _union(options: tuple[Any, ...], data: Any, where: str) -> Any:
    if data is None and type(None) in options:
        return None
    if Unavailable in options and (lost := unavailable_in(data)) is not None:
        return lost
    error: MalformedError | None = None
    for option in options:
        if option not in (type(None), Unavailable):
            try:
                return _value(option, data, where)
            except MalformedError as problem:
                error = problem
    raise error or MalformedError(f"{where}: no such value")


def _dataclass(kind: type, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise MalformedError(f"{where}: expected an object")
    hints = _hints(kind)
    known = {f.name: f for f in dataclasses.fields(kind)}
    values = {n: _value(hints[n], data[n], f"{where}.{n}") for n in known if n in data}
    try:
        return kind(**values)
    except TypeError as error:
        raise MalformedError(f"{where}: {error}") from None
