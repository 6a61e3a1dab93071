"""Why something is unavailable is an Enum; recordings and helpers write its values."""

from __future__ import annotations

import json

import pytest

from netdoctor.facts.accelerator import named
from netdoctor.host.base import decode, encode
from netdoctor.model import KINDS, Kind, Unavailable, kind_named, plain
from netdoctor.snapshot import codec


@pytest.mark.parametrize("kind", Kind)
def test_a_kind_survives_a_recording(kind: Kind) -> None:
    why = Unavailable(kind, "a detail")
    assert decode(json.loads(json.dumps(encode({"env:": why})))) == {"env:": why}
    assert json.loads(json.dumps(plain(why))) == {"unavailable": kind.value, "detail": "a detail"}
    assert kind.value in KINDS


_TELLING = {Kind.EMPTY, Kind.TIMED_OUT, Kind.MALFORMED, Kind.CRASHED, Kind.NOT_RECORDED, Kind.ANOTHER_ROOT}


@pytest.mark.parametrize("kind", Kind)
def test_a_reason_names_its_kind_only_where_that_tells(kind: Kind) -> None:
    """Of those the detail may be a path alone; "absent: No such file or directory" says one thing twice."""
    assert str(Unavailable(kind, "/a")) == (f"{kind.value}: /a" if kind in _TELLING else "/a")
    assert str(Unavailable(kind)) == kind.value


@pytest.mark.parametrize(
    ("detail", "says"),
    [
        ("NVML Shared Library Not Found", "NVML Shared Library Not Found"),
        ("Driver Not Loaded", "NVML: Driver Not Loaded"),
        ("", "NVML: absent"),
    ],
)
def test_who_gave_a_reason_is_said_once(detail: str, says: str) -> None:
    assert named("NVML", Unavailable(Kind.ABSENT, detail)) == says


def test_a_kind_of_a_newer_netdoctor_is_a_failure_and_no_crash() -> None:
    got = decode({"env:": {"unavailable": "eaten", "detail": "d"}})["env:"]
    assert isinstance(got, Unavailable) and got.kind is Kind.FAILED
    assert kind_named(None) is kind_named(["absent"]) is Kind.FAILED


def test_a_word_that_is_no_kind_is_refused_where_it_is_made() -> None:
    with pytest.raises(ValueError, match="abscent"):
        Unavailable("abscent")  # type: ignore[arg-type]


def test_the_codec_builds_kinds() -> None:
    assert codec._union((int, Unavailable), {"unavailable": "denied"}, "x") == Unavailable(Kind.DENIED)
