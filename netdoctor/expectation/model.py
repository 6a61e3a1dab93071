"""Parts, expectations and shortfalls: the one mechanism by which every source of expectation is judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

from netdoctor.model import Fix, Unavailable, Word, record

Value = float | int | str


class Source(Word):
    """Where an expectation comes from."""

    DEVICE = "device"  # the device's own capability
    SIBLINGS = "siblings"  # its like on the same node
    PLATFORM = "platform"  # the table of node shapes
    SITE = "site"  # `expected:` of the configuration
    PAST = "past"  # what this node had
    FLEET = "fleet"  # what other nodes of its shape have


class Quantity(Enum):
    """What is compared: its name, its text, and whether more of it carries more; else it is only equal or not."""

    __hash__ = object.__hash__  # Enum's is written in Python, and these are keys of tables

    WIDTH = ("PCIe link", "x{:g}", True)
    SPEED = ("PCIe speed", "{:g} GT/s", True)
    RATE = ("rate", "{:g} Gb/s", True)
    LANES = ("lanes of the port", "{:g}X", True)
    PORTS = ("ports up", "{:g}", True)
    NVLINKS = ("NVLinks up", "{:g}", True)
    GPUS = ("number of GPUs", "{:g}", True)
    RAILS = ("RDMA devices for the job", "{:g}", True)
    MEMORY = ("memory", "{:.0f} GiB", True)
    BOND = ("ports of the bond that carry", "{:g}", True)
    INTERFACE = ("its interface", "{}", False)
    INTERFACE_SPEED = ("speed of its interface", "{:g} Gb/s", True)
    MTU = ("MTU", "{:g}", True)
    PREFIX = ("IPv4 network of its interface", "{}", False)
    PACKET = ("MTU of the port", "{:g}", True)
    MODEL = ("model", "{}", False)
    CAPABILITY = ("compute capability", "{}", False)
    DRIVER = ("driver", "{}", False)
    FIRMWARE = ("firmware", "{}", False)
    LAYER = ("link layer", "{}", False)
    GID_KINDS = ("kinds of GIDs", "{}", False)
    PFC = ("priorities that it pauses (PFC)", "{}", False)
    DSCP = ("priority of a DSCP", "{}", False)
    TRUST = ("what tells it the priority of a packet", "{}", False)
    SHARES = ("shares of its priorities (ETS)", "{}", False)
    ECN = ("priorities with ECN", "{}", False)
    PAUSE = ("pauses of all priorities at once", "{}", False)
    BUFFERS = ("buffer of each priority", "{}", False)
    PKEY = ("partition key", "0x{:04x}", False)
    FAMILIES = ("address families of its GIDs", "{}", False)
    THERE = ("place on PCI", "{}", False)
    NUMA = ("NUMA node", "{}", False)
    NEAREST = ("HCAs behind the same PCIe switch", "{:g}", True)
    GPUS_NEAR = ("GPUs behind the same PCIe switch", "{:g}", True)
    CLOCK = ("highest SM clock under load", "{:g} MHz", True)
    POWER = ("power limit", "{:g} W", True)
    ECC = ("ECC", "{}", False)
    PERSISTENCE = ("persistence mode", "{}", False)
    CLIQUE = ("NVLink fabric", "{}", False)
    BAR1 = ("BAR1", "{:.0f} MiB", True)

    def __init__(self, title: str, form: str, ordered: bool) -> None:
        self.title = title
        self.form = form
        self.ordered = ordered

    def text(self, value: Value) -> str:
        return self.form.format(value)


@record
class Part:
    """Something of the node, and what there is of it.

    None: it has no such thing, which was seen; Unavailable: it could not be read.  A quantity that is not named is not asked.
    """

    name: str  # the subject of its finding: "mlx5_3", "GPU 0000:1b:00.0", `model.NODE`
    has: Mapping[Quantity, Value | None | Unavailable]
    like: str = ""  # those of one text are alike on a real node: siblings


@record
class Expectation:
    """What one source says of one quantity of one part."""

    subject: str
    quantity: Quantity
    should: Value
    source: Source
    because: str  # for the finding's `expected`: "7 of its kind", "AWS p5.48xlarge"
    enough: float | None = None  # what the job needs of it: who has that loses nothing
    cites: str = ""  # where that can be read
    certain: bool = True  # False: what could be; that it is less may be the site's choice, and nothing here tells
    mend: Fix | None = None  # where the reason is known; else what mends such a thing

    @property
    def text(self) -> str:
        return f"{self.quantity.title} {self.quantity.text(self.should)} ({self.because})"

    @property
    def cited(self) -> str:
        """The same with its source."""
        return f"{self.text[:-1]}: {self.cites})" if self.cites else self.text


@record
class Shortfall:
    """A part has less of something than was expected, or another."""

    expectation: Expectation
    has: Value

    @property
    def left(self) -> float | None:
        """The share that is there, of what is counted; None where there is no more and less."""
        should = self.expectation.should
        if not self.expectation.quantity.ordered or isinstance(should, str) or isinstance(self.has, str) or not should:
            return None
        return self.has / should

    @property
    def text(self) -> str:
        quantity = self.expectation.quantity
        return f"{quantity.title} {quantity.text(self.has)}"


@record
class Doubt:
    """What an expectation is about and could not be read."""

    expectation: Expectation
    why: Unavailable

    @property
    def text(self) -> str:
        return f"{self.expectation.quantity.title} of {self.expectation.subject} could not be read: {self.why}"


@record
class Judged:
    """What came of some expectations."""

    shortfalls: tuple[Shortfall, ...]
    doubts: tuple[Doubt, ...]
    held: tuple[Expectation, ...]
    perhaps: tuple[Shortfall, ...] = ()  # of expectations that are not certain

    @property
    def by_subject(self) -> dict[str, tuple[Shortfall, ...]]:
        names = dict.fromkeys(one.expectation.subject for one in self.shortfalls)
        return {name: tuple(s for s in self.shortfalls if s.expectation.subject == name) for name in names}


def judged(parts: Iterable[Part], expectations: Iterable[Expectation]) -> Judged:
    """Every expectation against what is there; what a part does not have on evidence (None) is not compared."""
    there = {part.name: part for part in parts}
    short: list[Shortfall] = []
    perhaps: list[Shortfall] = []
    doubts: list[Doubt] = []
    held: list[Expectation] = []
    for one in expectations:
        value = there[one.subject].has.get(one.quantity) if one.subject in there else None
        if isinstance(value, Unavailable):
            doubts.append(Doubt(one, value))
        elif value is None:
            continue
        elif is_short(one.quantity, value, one.should):
            (short if one.certain else perhaps).append(Shortfall(one, value))
        else:
            held.append(one)
    return Judged(tuple(short), tuple(doubts), tuple(held), tuple(perhaps))


# Of parts alike those that only so many lack are lacking; a node that has them on half of its GPUs was built so.
FEW: Final = 0.25
# What is as much: memory of one model differs by little (ECC pages, retired rows), clocks of one model by how good each chip is
# (a tenth is what counts as critical).
_CLOSE: Final = {Quantity.MEMORY: 0.98, Quantity.CLOCK: 0.9}


def is_short(quantity: Quantity, has: Value, should: Value) -> bool:
    """Whether a part has less than it should, or another."""
    if quantity is Quantity.FAMILIES:
        return _lacks(str(has), str(should))
    if not quantity.ordered or isinstance(has, str) or isinstance(should, str):
        return has != should
    return has < should * _CLOSE.get(quantity, 1)


_FAMILIES: Final = ("IPv4", "IPv6")


def _lacks(has: str, should: str) -> bool:
    """Of address families: NCCL takes IPv4 where nobody says another (ncclIbGetGidIndex, src/transport/net_ib), so that one
    beside it is nobody's fault; what NCCL_IB_ADDR_FAMILY asks for, rdma.gid judges."""
    needed = should.partition(", ")[0]
    return needed in _FAMILIES and needed not in has.split(", ")


@record
class Comparison:
    """What one check weighs: all parts, what every source says of them, and why a source could not say anything."""

    parts: tuple[Part, ...]
    expectations: tuple[Expectation, ...]
    unread: Unavailable | None = None
    across: frozenset[str] = frozenset()  # parts that nothing uses but the way to other nodes
