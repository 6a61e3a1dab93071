"""What a node of the run, or whoever stole its token, tries at a meeting of nodes (`tests.lab.meeting`)."""

from __future__ import annotations

import hashlib
import json
import random
import time
import zlib

from netdoctor.cluster.channel import Body
from netdoctor.cluster.coordinator import LIMITS as BYTES, SUBJECTS
from tests.lab.meeting_attacks import NASTY, attack, beside, first
from tests.lab.meeting_nodes import Meeting
from tests.unit.test_nodes_hostile import changed, told
from tests.unit.test_nodes_strangers import TOKEN, Caller

# With the token: a node of the run, or whoever stole it


@attack("has the token: says text where a time belongs, two megabytes of it", token=True, plays=(2,))
def _(meeting: Meeting) -> None:
    two = first(meeting, 2, TOKEN)
    beside(lambda: [two.say({"say": "ping", "t": "x" * (1 << 21)}) for _ in range(200)] and None)


@attack("has the token: sends signs of life without end, and reads nothing", token=True, plays=(2,))
def _(meeting: Meeting) -> None:
    two = first(meeting, 2, TOKEN)
    beside(lambda: [two.say({"say": "ping", "t": 1.5}) for _ in range(100_000)] and None)


@attack("has the token: says more than it may of each subject", token=True, plays=(2,))
def _(meeting: Meeting) -> None:
    two = first(meeting, 2, TOKEN)
    letters = "".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=BYTES["place"] + 100))

    def say() -> None:
        two.until("join")
        two.say({"say": "place", "data": letters})

    beside(say)


@attack("has the token: packs a bomb", token=True, plays=(2,))
def _(meeting: Meeting) -> None:
    two = first(meeting, 2, TOKEN)
    body = Body(b"{}")
    packed = b"z" + zlib.compress(b'{"say":"' + b"0" * (32 << 20), 1)
    body.data, body.digest = memoryview(packed), hashlib.sha256(packed).digest()
    assert two.sender is not None
    two.raw(two.sender.frame(body))
    beside(lambda: two.raw(packed))


@attack("has the token: comes as node 1 as well, after it", token=True)
def _(meeting: Meeting) -> None:
    def again() -> None:
        time.sleep(0.5)
        first(meeting, 1, TOKEN)

    meeting.late = {2: 1.5}
    beside(again)


@attack("has the token: comes as node 1 as well, before it", token=True)
def _(meeting: Meeting) -> None:
    one = first(meeting, 1, TOKEN)
    meeting.late = {1: 0.5, 2: 1.5}

    def stay() -> None:
        for _ in range(30):
            one.say({"say": "ping", "t": 1.0})
            time.sleep(0.1)

    beside(stay)


@attack("has the token: makes the others dial a port of the system and another machine's loopback", token=True, plays=(2,))
def _(meeting: Meeting) -> None:
    two = Caller(meeting.port, TOKEN)
    two.join(2, 3, {"host": "h2", "port": 22}, run="lab")

    def say() -> None:
        two.until("join")
        two.say({"say": "place", "data": {"space": "x", "gloo": ["lo", "127.0.0.9"], "nccl": ["e", "169.254.169.254"]}})

    beside(say)


@attack("has the token: comes and goes a hundred times", token=True, plays=(2,))
def _(meeting: Meeting) -> None:
    def restless() -> None:
        for _ in range(100):
            first(meeting, 2, TOKEN).close()

    beside(restless)


@attack("has the token: tells the result before anything is run, and where to meet", token=True, plays=(2,))
def _(meeting: Meeting) -> None:
    two = first(meeting, 2, TOKEN)
    for message in (
        {"say": "result", "data": {}, "failed": True},
        {"say": "store", "port": 1},
        {"say": "join"},
        {"say": "welcome"},
    ):
        two.say(message)


@attack("has the token: every name is of escapes", token=True, plays=(2,))
def _(meeting: Meeting) -> None:
    two = Caller(meeting.port, TOKEN)
    two.join(2, 3, {"host": NASTY, "port": 5000, NASTY: NASTY}, run="lab")

    def say() -> None:
        for subject in SUBJECTS[1:]:
            two.until(SUBJECTS[SUBJECTS.index(subject) - 1])
            data = json.loads(json.dumps(told()[subject]).replace('"h1"', json.dumps(NASTY)).replace("2.9", f"2.9{NASTY!r}"))
            two.say({"say": subject, "data": {**data, NASTY: NASTY}})

    beside(say)


@attack("has the token: says anything at all", token=True, plays=(2,))
def _(meeting: Meeting) -> None:
    two, draw = first(meeting, 2, TOKEN), random.Random(time.time())

    def say() -> None:
        for subject in SUBJECTS[1:]:
            two.until(SUBJECTS[SUBJECTS.index(subject) - 1])
            two.say({"say": subject, "data": changed(told()[subject], draw)})

    beside(say)
