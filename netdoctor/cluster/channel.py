"""One connection of a meeting: how its ends prove themselves, and how messages go over it.  No socket is touched here.

1. The node says ``join`` on one line of JSON of at most `FIRST` bytes: which node of how many, of which run, and a nonce.
2. The coordinator says ``challenge`` with a nonce of its own, or ``refused``, on one such line.
3. From then on there are frames: length, HMAC-SHA-256, JSON.  The keys are made of the secret, both nonces and what was said in
   ``join``, one a direction; the HMAC covers the number of the frame.  So nothing can be said by who lacks the secret, nor said
   again, in another order, to the other end or in another meeting.

Without a secret the same is done with an empty one: it then keeps out mistakes, and nobody who means harm.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from netdoctor.cluster.secret import Secret

PROTOCOL: Final = "netdoctor.meeting/3"
FIRST: Final = 4096  # bytes: a credential of MUNGE has some 400
LARGE: Final = 1024  # bytes: beyond them a message is compressed
_HEAD: Final = struct.Struct(">I32s")
_PACKED: Final = b"z"


class GarbageError(ValueError):
    """What no netdoctor of this version says."""


class ForgedError(GarbageError):
    """A frame whose HMAC is not of this connection's keys."""


def nonce() -> str:
    return secrets.token_hex(16)


def first_line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def read_first(data: bytes) -> dict[str, Any]:
    """Raises GarbageError."""
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        raise GarbageError("no JSON") from None
    if not isinstance(message, dict) or not isinstance(message.get("say"), str):
        raise GarbageError("no message")
    return message


class Body:
    """A message, packed once however many it is told to."""

    def __init__(self, message: Mapping[str, Any] | bytes) -> None:
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.data = memoryview(_PACKED + zlib.compress(data, 1) if len(data) > LARGE else data)
        self.digest = hashlib.sha256(self.data).digest()


class Keys:
    """Of the two directions of one connection."""

    def __init__(self, secret: Secret, join: Mapping[str, Any], challenge: str) -> None:
        told = (PROTOCOL, str(join["node"]), str(join["nodes"]), str(join["run"]), str(join["nonce"]), challenge)
        self.up, self.down = secret.derive("node", *told), secret.derive("coordinator", *told)


class Sender:
    def __init__(self, key: bytes) -> None:
        self.key, self.number = key, 0

    def frame(self, body: Body) -> bytes:
        """What goes before the body's data."""
        code = hmac.digest(self.key, struct.pack(">Q", self.number) + body.digest, "sha256")
        self.number += 1
        return _HEAD.pack(len(body.data), code)


class Receiver:
    """`limit` is the most bytes of one message, as it comes and unpacked; the caller may change it between messages."""

    def __init__(self, key: bytes, limit: int) -> None:
        self.key, self.limit, self.number = key, limit, 0
        self.buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The messages that are whole now.  Raises GarbageError."""
        self.buffer += data
        while len(self.buffer) >= _HEAD.size:
            length, code = _HEAD.unpack_from(self.buffer)
            if length > self.limit:
                raise GarbageError("it said too much")
            end = _HEAD.size + length
            if len(self.buffer) < end:
                return
            body = bytes(memoryview(self.buffer)[_HEAD.size : end])
            del self.buffer[:end]
            wanted = hmac.digest(self.key, struct.pack(">Q", self.number) + hashlib.sha256(body).digest(), "sha256")
            if not hmac.compare_digest(code, wanted):
                raise ForgedError("its HMAC is wrong")
            self.number += 1
            yield read_first(self._unpacked(body))

    def _unpacked(self, body: bytes) -> bytes:
        if not body.startswith(_PACKED):
            return body
        one = zlib.decompressobj()
        try:
            data = one.decompress(body[1:], self.limit)
        except zlib.error:
            raise GarbageError("no such packing") from None
        if one.unconsumed_tail or not one.eof:
            raise GarbageError("it said too much")
        return data
