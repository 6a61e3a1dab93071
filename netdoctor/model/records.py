"""`record`: a frozen dataclass that is defined in a fifth of the time.

Up to Python 3.12 `dataclasses` compiles six functions for each frozen class.  netdoctor has more than two hundred of them, and
making them was a third of a look at a node.  Here the fields are the standard library's (so `fields`, `replace` and `asdict`
work), `__init__` is compiled for each class, and everything else is one function for all.
"""

from __future__ import annotations

import operator
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import dataclass_transform
else:  # Python 3.11's, for type checkers alone

    def dataclass_transform(**_: Any) -> Any:
        return lambda made: made


T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """``@dataclass(frozen=True)``: equal, hashed and shown by its fields.  Like there, a method that the class has stays.

    Raises what `dataclass` raises of fields that it does not allow.
    """
    dataclass(init=False, repr=False, eq=False)(cls)
    every = fields(cls)  # type: ignore[arg-type]
    made = {
        "__init__": _init(cls, every),
        "__repr__": _repr(tuple(one.name for one in every if one.repr)),
        "__setattr__": _set,
        "__delattr__": _delete,
        **_compared(tuple(one.name for one in every if one.compare)),
    }
    # A class with an __eq__ of its own has the __hash__ None, which nobody wrote.
    kept = {name for name, value in vars(cls).items() if value is not None}
    for name, method in made.items():
        if name not in kept:
            setattr(cls, name, method)
    return cls


def _init(cls: type, every: tuple[Field[Any], ...]) -> Callable[..., None]:
    """`__init__` of the fields in their order, those by keyword behind; each default stands for what is not given."""
    # Names that no field has.
    scope: dict[str, Any] = {"_set_": object.__setattr__, "_not_given_": MISSING}
    plain: list[str] = []
    named: list[str] = []
    body: list[str] = []
    for one in every:
        value = one.name
        if one.default is not MISSING:
            scope[f"_{one.name}_"] = one.default
            parameter = f"{one.name}=_{one.name}_"
        elif one.default_factory is not MISSING:
            scope[f"_{one.name}_"] = one.default_factory
            parameter = f"{one.name}=_not_given_"
            value = f"_{one.name}_() if {one.name} is _not_given_ else {one.name}"
        else:
            parameter = one.name
        (named if one.kw_only else plain).append(parameter)
        body.append(f"  _set_(self, {one.name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        body.append("  self.__post_init__()")
    parameters = ", ".join(["self", *plain, *(["*", *named] if named else [])])
    exec("\n".join([f"def __init__({parameters}):", *(body or ["  pass"])]), scope)  # noqa: S102
    made: Callable[..., None] = scope["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__annotations__ = {one.name: one.type for one in every} | {"return": None}
    return made


def _compared(names: tuple[str, ...]) -> dict[str, Callable[..., Any]]:
    if len(names) > 1:
        values: Callable[[Any], Any] = operator.attrgetter(*names)
    else:  # a tuple all the same: one value that is not equal to itself (nan) is, within it

        def values(self: Any) -> Any:
            return tuple(getattr(self, name) for name in names)

    def equal(self: Any, other: Any) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def hashed(self: Any) -> int:
        return hash(values(self))

    return {"__eq__": equal, "__hash__": hashed}


def _repr(names: tuple[str, ...]) -> Callable[[Any], str]:
    def shown(self: Any) -> str:
        return f"{self.__class__.__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return shown


def _set(self: Any, name: str, _: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r} of {self.__class__.__qualname__}")


def _delete(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r} of {self.__class__.__qualname__}")
