"""Why something is unavailable is an Enum; recordings and helpers write its values."""

from __future__ import annotations

import json

import pytest

from netdoctor.host.base import decode, encode
from netdoctor.model import KINDS, Kind, Unavailable, kind_named, plain
from netdoctor.snapshot import codec


@pytest.mark.parametrize("kind", Kind)
def test_a_kind_survives_a_recording(kind: Kind) -> None:
    why = Unavailable(kind, "a detail")
    assert decode(json.loads(json.dumps(encode({"env:": why})))) == {"env:": why}
    assert json.loads(json.dumps(plain(why))) == {"unavailable": kind.value, "detail": "a detail"}
    assert str(why) == f"{kind.value}: a detail" and kind.value in KINDS


def test_a_kind_of_a_newer_netdoctor_is_a_failure_and_no_crash() -> None:
    got = decode({"env:": {"unavailable": "eaten", "detail": "d"}})["env:"]
    assert isinstance(got, Unavailable) and got.kind is Kind.FAILED
    assert kind_named(None) is kind_named(["absent"]) is Kind.FAILED


def test_a_word_that_is_no_kind_is_refused_where_it_is_made() -> None:
    with pytest.raises(ValueError, match="abscent"):
        Unavailable("abscent")  # type: ignore[arg-type]


def test_the_codec_builds_kinds() -> None:
    assert codec._union((int, Unavailable), {"unavailable": "denied"}, "x") == Unavailable(Kind.DENIED)
