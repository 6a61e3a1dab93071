"""A record does as a frozen dataclass does: each statement is held against the standard library's own."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from dataclasses import KW_ONLY, FrozenInstanceError, asdict, dataclass, field, fields, replace
from typing import Any

import pytest

from netdoctor.model import record

NAN = float("nan")


def frozen(cls: type) -> type:
    return dataclass(frozen=True)(cls)


def made(kind: Callable[[type], type]) -> dict[str, type]:
    @kind
    class One:
        value: float

    @kind
    class Many:
        name: str
        number: int = 3
        made: list[int] = field(default_factory=list, compare=False)
        secret: str = field(default="s", repr=False, kw_only=True)

    @kind
    class Below(Many):  # type: ignore[misc]
        _: KW_ONLY
        told: str

    @kind
    class Nothing:
        pass

    @kind
    class Own:  # noqa: PLW1641 - what Python makes of that is what is tried
        a: int
        b: int = 0

        def __eq__(self, other: object) -> bool:
            return isinstance(other, type(self))

        def __repr__(self) -> str:
            return "own"

        def __post_init__(self) -> None:
            object.__setattr__(self, "b", self.a + self.b)

    return {cls.__name__: cls for cls in (One, Many, Below, Nothing, Own)}


OURS, THEIRS = made(record), made(frozen)
GIVEN: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("One", (1.0,), {}),
    ("One", (NAN,), {}),
    ("Many", ("a",), {}),
    ("Many", ("a", 4, [1]), {"secret": "t"}),
    ("Many", (), {"name": "b", "number": 5}),
    ("Below", ("a",), {"told": "x", "secret": "t"}),
    ("Nothing", (), {}),
    ("Own", (1, 2), {}),
    ("Own", (1,), {}),
]


@pytest.mark.parametrize(("name", "words", "named"), GIVEN)
def test_it_is_shown_equal_and_hashed_alike(name: str, words: tuple[Any, ...], named: dict[str, Any]) -> None:
    one, other = OURS[name](*words, **named), THEIRS[name](*words, **named)
    assert repr(one) == repr(other).replace(frozen.__name__, record.__name__)
    assert asdict(one) == asdict(other)
    assert (one == copy.copy(one)) == (other == copy.copy(other))
    again = OURS[name](*words, **named)
    assert one == again and (one is not again)
    assert one != other and one != 1
    hashes = [hash(x) if type(x).__hash__ else None for x in (one, other)]
    assert len({type(x) for x in hashes}) == 1
    if hashes[0] is not None:
        assert hash(again) == hashes[0]


def test_what_is_not_compared_makes_no_difference() -> None:
    many = OURS["Many"]
    assert many("a", made=[1]) == many("a", made=[2]) and len({many("a", made=[1]), many("a", made=[2])}) == 1
    assert many("a", secret="x") != many("a", secret="y")
    assert many("a").made is not many("a").made


@pytest.mark.parametrize("name", OURS)
def test_its_signature_is_the_dataclass_one(name: str) -> None:
    ours, theirs = inspect.signature(OURS[name]), inspect.signature(THEIRS[name])
    assert [(p.name, p.kind) for p in ours.parameters.values()] == [(p.name, p.kind) for p in theirs.parameters.values()]
    assert [f.name for f in fields(OURS[name])] == [f.name for f in fields(THEIRS[name])]


@pytest.mark.parametrize("kind", [OURS, THEIRS], ids=["record", "dataclass"])
def test_nothing_of_it_changes(kind: dict[str, type]) -> None:
    one = kind["One"](1.0)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'value'"):
        one.value = 2.0
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'value'"):
        del one.value
    assert replace(one, value=2.0).value == 2.0 and one.value == 1.0


@pytest.mark.parametrize("kind", [OURS, THEIRS], ids=["record", "dataclass"])
@pytest.mark.parametrize(
    ("name", "words", "named"),
    [
        ("One", (), {}),
        ("One", (1, 2), {}),
        ("Many", ("a",), {"nobody": 1}),
        ("Below", ("a",), {}),
        ("Many", ("a", 1, [], "s"), {}),
    ],
)
def test_what_does_not_fit_is_refused(kind: dict[str, type], name: str, words: tuple[Any, ...], named: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        kind[name](*words, **named)


def test_fields_in_a_wrong_order_are_refused() -> None:
    """Where the standard library looks for it: in the text of `__init__`."""
    for kind in (record, frozen):
        with pytest.raises((TypeError, SyntaxError)):

            @kind
            class _Wrong:
                a: int = 1
                b: int  # type: ignore[misc]


@record
class Known:
    """One that pickle finds by its name."""

    a: int
    b: tuple[str, ...] = ()


def test_it_is_pickled_and_copied() -> None:
    one = Known(1, ("x",))
    assert pickle.loads(pickle.dumps(one)) == one == copy.deepcopy(one)
    assert Known.__match_args__ == ("a", "b")  # type: ignore[attr-defined]
