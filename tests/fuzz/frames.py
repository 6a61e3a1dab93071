"""What nodes of a meeting say to each other: first lines and frames, by a stranger and by one that has the token."""

from __future__ import annotations

import contextlib
import hashlib
import json

from netdoctor.cluster import channel
from tests.unit.test_nodes_hostile import part


class Told(channel.Body):
    """A body as it is."""

    def __init__(self, data: bytes) -> None:
        self.data, self.digest = memoryview(data), hashlib.sha256(data).digest()


def said() -> list[bytes]:
    parts = {"say": "told", "subject": "join", "data": {"0": part()}}
    texts = [json.dumps(one).encode() for one in (parts, {"say": "ping", "t": 1.5}, {"say": "challenge", "nonce": "a"})]
    return [*texts, *(bytes(channel.Body(text * 40).data) for text in texts)]


def read_frames(data: bytes) -> None:
    """The HMAC of the second is right."""
    key = b"k" * 32
    with contextlib.suppress(channel.GarbageError):
        channel.read_first(data[: channel.FIRST])
    framed = channel.Sender(key).frame(Told(data)) + data
    for given in (data, framed):
        with contextlib.suppress(channel.GarbageError):
            list(channel.Receiver(key, 1 << 16).feed(given))
