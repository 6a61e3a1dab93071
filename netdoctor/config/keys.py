"""Every key of the configuration: what it says, what its value must be, and which of two values is the stricter one."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from netdoctor.config.document import ConfigError, Path, parse
from netdoctor.model import record
from netdoctor.policy import FAIL_ON_ORDER, PROFILE_ORDER, Waiver, strictest
from netdoctor.textsafe import nearest

VANTAGES: Final = ("job", "node", "host", "container", "pod-init", "pod", "prolog", "wrapper", "host-root")
VIAS: Final = ("torch", "nccl")  # facts.runs.Caller
# What a site may call the network that carries its data -> NCCL's name of it, or that of a plugin as its maker's log prints it:
# RoCE is NET/IB too, EFA goes by aws-ofi-nccl, IBext and UCX are nccl-rdma-sharp-plugins', the last three Google's.
NETWORKS: Final = {
    **dict.fromkeys(("IB", "RoCE", "InfiniBand", "RDMA", "IBext"), "IB"),
    **dict.fromkeys(("Socket", "TCP"), "Socket"),
    **dict.fromkeys(("EFA", "OFI", "Libfabric", "AWS Libfabric"), "Libfabric"),
    "UCX": "UCX",
    "gIB": "gIB",
    "FasTrak": "FasTrak",
    "GPUDirectTCPX": "GPUDirectTCPX",
}
WAIVER_KEYS: Final = ("check", "subject", "reason", "until")


class WrongValueError(Exception):
    """A value of the wrong type or range; `path` leads below the key."""

    def __init__(self, message: str, path: Path = ()) -> None:
        super().__init__(message)
        self.message, self.path = message, path


@record
class Key:
    """One key."""

    kind: str  # how `from_text` reads it
    check: Callable[[Any], Any]  # raises WrongValueError
    stricter: Callable[[Any, Any], Any]  # (the site's or None, another source's) -> the stricter of the two
    about: str
    schema: Mapping[str, Any]  # of the value, as JSON Schema
    default: Any = None


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None:
        return "nothing"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _integer(low: int, high: float = math.inf) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise WrongValueError(f"must be a whole number from {low}{f' to {high}' * (high < math.inf)}, not {_shown(value)}")
        return value

    return check


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise WrongValueError(f"must be a number above 0, not {_shown(value)}")
    return float(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise WrongValueError(f"must be true or false, not {_shown(value)}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise WrongValueError(f"must be text, not {_shown(value)}")
    return value


def _choice(choices: tuple[str, ...]) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value not in choices:
            raise WrongValueError(f"must be one of {', '.join(choices)}, not {_shown(value)}{nearest(str(value), choices)}")
        return str(value)

    return check


def unversioned(network: str) -> str:
    """``IBext_v8`` as ``IBext``: a plugin's network carries the version of its interface."""
    return re.sub(r"_v\d+$", "", network.strip())


def _network(value: Any) -> str:
    known = next((name for name in NETWORKS if name.lower() == unversioned(str(value)).lower()), value)
    return _choice(tuple(NETWORKS))(known)


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise WrongValueError(f"must be a list of text, not {_shown(value)}")
    return tuple(_below(index, _text, item) for index, item in enumerate(value))


def _folders(value: Any) -> tuple[str, ...]:
    if odd := [one for one in _texts(value) if not one.startswith("/")]:
        raise WrongValueError(f"must be absolute paths, not {_shown(odd[0])}")
    return _texts(value)


def _below(step: str | int, check: Callable[[Any], Any], value: Any) -> Any:
    try:
        return check(value)
    except WrongValueError as error:
        raise WrongValueError(error.message, (step, *error.path)) from None


def size(text: Any) -> int:
    """Bytes of ``64M``: K, M and G are binary, as in nccl-tests (src/common.cu, parsesize)."""
    found = re.fullmatch(r"([0-9]{1,15})\s*([KMG]?)(?:i?B)?", str(text).strip(), re.IGNORECASE)
    if not found or int(found[1]) == 0:
        raise WrongValueError(f"must be a size such as 64M, not {_shown(text)}")
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2].upper()]


def _numbers(value: Any) -> dict[str, int]:
    if not isinstance(value, dict):
        raise WrongValueError(f"must map names to whole numbers ({{eth0: 9000}}), not {_shown(value)}")
    whole = _integer(1)
    return {_below(str(key), _text, key): _below(str(key), whole, number) for key, number in value.items()}


def _floor(value: Any) -> dict[int, float]:
    if not isinstance(value, dict):
        raise WrongValueError(f"must map sizes to GB/s ({{64M: 10}}), not {_shown(value)}")
    return {_below(str(key), size, key): _below(str(key), _number, rate) for key, rate in value.items()}


def _waivers(value: Any) -> tuple[Waiver, ...]:
    if not isinstance(value, list | tuple):
        raise WrongValueError(f"must be a list of waivers, not {_shown(value)}")
    return tuple(_below(index, _waiver, item) for index, item in enumerate(value))


def _waiver(value: Any) -> Waiver:
    if isinstance(value, Waiver):
        return value
    if not isinstance(value, dict):
        raise WrongValueError("must be a mapping with check, reason and until")
    for name in value:
        if name not in WAIVER_KEYS:
            raise WrongValueError(f"unknown key{nearest(str(name), WAIVER_KEYS, cutoff=0.5)}", (name,))
    missing = [name for name in ("check", "reason", "until") if value.get(name) is None]
    if missing:
        raise WrongValueError(f"a waiver needs {' and '.join(missing)}")
    subject = value.get("subject")
    return Waiver(
        check=_below("check", _text, value["check"]),
        reason=_below("reason", _text, value["reason"]),
        until=_below("until", _date, value["until"]),
        subject=None if subject is None else _below("subject", _text, subject),
    )


def _date(value: Any) -> datetime.date:
    try:
        return datetime.date.fromisoformat(value if re.fullmatch(r"\d{4}-\d{2}-\d{2}", value) else "")
    except (TypeError, ValueError):
        raise WrongValueError(f"must be a date such as 2026-12-31, not {_shown(value)}") from None


# Which of two values is the stricter.  The site's value is None where it said nothing.


def _larger(site: Any, given: Any) -> Any:
    return given if site is None else max(site, given)


def _from(least: float) -> Callable[[Any, Any], Any]:
    """The larger; where the site said nothing, `least` is the first that asks for more than nothing said does."""
    return lambda site, given: max(site, given) if site is not None else given if given >= least else None


# Where the site said nothing, what device, siblings and platform say stands: a number of the job's would count in its place.
_more_than_the_sites = _from(math.inf)


def _kept(site: Any, given: Any) -> Any:
    return given if site is None else site


def _carrier(site: str | None, given: str) -> str | None:
    """That sockets or a plugin carry the data excuses what is missing."""
    return given if site is None and NETWORKS[given] == "IB" else site


def _torch(site: str | None, given: str) -> str | None:
    """To go without the job's torch excuses what is wrong with it."""
    return given if site is None and given == "torch" else site


def _only_site(site: Any, _given: Any) -> Any:
    return site


def _common(site: Iterable[Any] | None, given: Iterable[Any]) -> tuple[Any, ...]:
    """What takes checks away can only become less."""
    return tuple(item for item in site or () if item in given)


def _more(site: tuple[str, ...] | None, given: tuple[str, ...]) -> tuple[str, ...] | None:
    return None if site is None else (*site, *(item for item in given if item not in site))


def _and(site: tuple[str, ...] | None, given: tuple[str, ...]) -> tuple[str, ...]:
    """What must be there can only become more."""
    return (*(site or ()), *(item for item in given if item not in (site or ())))


def _each(site: dict[str, int] | None, given: dict[str, int]) -> dict[str, int]:
    return {**given, **(site or {})}


def _by(order: tuple[str, ...], default: str) -> Callable[[Any, Any], Any]:
    return lambda site, given: strictest(order, site or default, given)


def _floors(site: dict[int, float] | None, given: dict[int, float]) -> dict[int, float] | None:
    """The floor of the largest size counts: that of a larger one is no lower than what the site says of a smaller one."""
    site = site or {}
    sizes = [size for size in {**site, **given} if any(size >= one for one in site)]
    return {size: max(given.get(size, 0.0), *(site[one] for one in site if one <= size)) for size in sizes} or None


def _whole(low: int, stricter: Callable[[Any, Any], Any], about: str) -> Key:
    return Key("int", _integer(low), stricter, about, {"type": "integer", "minimum": low})


def _above_zero(stricter: Callable[[Any, Any], Any], about: str) -> Key:
    return Key("float", _number, stricter, about, {"type": "number", "exclusiveMinimum": 0})


def _switch(stricter: Callable[[Any, Any], Any], about: str, default: bool | None = None) -> Key:
    return Key("bool", _flag, stricter, about, {"type": "boolean"}, default)


def _word(stricter: Callable[[Any, Any], Any], about: str) -> Key:
    return Key("text", _text, stricter, about, _TEXT)


def _one_of(choices: tuple[str, ...], stricter: Callable[[Any, Any], Any], about: str, default: str | None = None) -> Key:
    return Key("text", _choice(choices), stricter, about, {"enum": list(choices)}, default)


def _words(stricter: Callable[[Any, Any], Any], about: str) -> Key:
    return Key("texts", _texts, stricter, about, {"type": "array", "items": _TEXT})


_TEXT: Final = {"type": "string", "minLength": 1}
_LEVEL: Final = {"type": "integer", "minimum": 1, "maximum": 4}
_FOLDERS: Final = {"type": "array", "items": {"type": "string", "pattern": "^/"}}
_WAIVER: Final = {
    "type": "object",
    "properties": {**dict.fromkeys(WAIVER_KEYS, _TEXT), "until": {"type": "string", "format": "date"}},
    "required": ["check", "reason", "until"],
    "additionalProperties": False,
}
# Sizes are 4K, 64M, 1G, or a number of bytes.
_FLOOR: Final = {
    "type": "object",
    "patternProperties": {"^[0-9]+ *([kKmMgG](i?[bB])?|[bB])?$": {"type": "number", "exclusiveMinimum": 0}},
    "additionalProperties": False,
}
# In any case, and with the version of the interface behind it (`_network`), which no JSON pattern says well.
_NETWORK: Final = {"type": "string", "examples": list(NETWORKS)}

KEYS: Final[dict[str, Key]] = {
    # one node excuses what only several need
    "job.nodes": _whole(1, _from(2), "nodes of the job; else what its launcher says"),
    "job.ranks_per_node": _whole(1, _more_than_the_sites, "ranks on each node; else the launcher's word, or one a GPU"),
    "job.communicators": _whole(1, _larger, "NCCL communicators (process groups) at once; each takes ports and memory"),
    "job.shm_bytes": _whole(0, _larger, "what the job itself puts into /dev/shm on a node: batches of DataLoader workers"),
    "job.gloo_groups": _whole(0, _from(1), "Gloo process groups; 0: none"),
    "job.all_to_all": _switch(_larger, "every rank sends to every rank (mixture of experts): that takes more ports"),
    "job.paths": Key("texts", _folders, _and, "folders that the job writes (checkpoints, logs)", _FOLDERS),
    "expected.gpus": _whole(0, _more_than_the_sites, "GPUs of the node; 0: none"),
    "expected.hcas": _whole(0, _more_than_the_sites, "RDMA devices of the job on the node; 0: none"),
    "expected.hca_rate_gbps": _above_zero(_more_than_the_sites, "rate of every port of the job's RDMA devices, Gbit/s"),
    "expected.transport": Key("text", _network, _carrier, "network that carries the job's data between nodes", _NETWORK),
    "expected.busbw_floor": Key(
        "floor", _floor, _floors, "bus bandwidth that the all-reduce must reach: GB/s by size, {64M: 300}", _FLOOR
    ),
    "expected.rails_routed": _switch(_larger, "each rail is a network of its own, and they are routed to each other"),
    # a near peer's round trip would count in the place of `rtt_ms`
    "expected.peers": _words(_more, "addresses of other nodes of the job: round trips and routes are taken to them"),
    # one of nearly 0 passes where none is known
    "expected.rtt_ms": _above_zero(_more_than_the_sites, "round trip between nodes in ms, where there is no peer to ask"),
    "expected.gpu_model": _word(_kept, "model of the GPUs, as the driver names it"),
    "expected.gpu_addresses": _words(_and, "PCI addresses where a GPU must be"),
    "expected.nvlinks": _whole(1, _larger, "NVLinks that are up on each GPU"),
    "expected.gpu_power_limit_w": _above_zero(_more_than_the_sites, "power limit of each GPU at least, W"),
    "expected.gpu_clock_mhz": _above_zero(_more_than_the_sites, "SM clock of each GPU under load at least, MHz"),
    "expected.hca_addresses": _words(_and, "PCI addresses where an RDMA device must be"),
    "expected.hca_firmware": _words(_kept, "firmware that the RDMA devices may have"),
    "expected.driver": _word(_kept, "version of the GPU driver"),
    "expected.instance_type": _word(_only_site, "the cloud's name of such a machine, where nothing on it says that"),
    "expected.mtu": Key(
        "numbers",
        _numbers,
        _each,
        "least MTU by interface, {eth0: 9000}",
        {"type": "object", "additionalProperties": {"type": "integer", "minimum": 1}},
    ),
    "profile": _one_of(PROFILE_ORDER, _by(PROFILE_ORDER, "default"), "what must be able to tell", "default"),
    "fail_on": _one_of(
        FAIL_ON_ORDER[::-1], _by(FAIL_ON_ORDER, "critical"), "lowest severity that counts as unhealthy", "critical"
    ),
    "disabled": _words(_common, "checks that are not done"),
    "waivers": Key(
        "yaml", _waivers, _common, "fails that are known and accepted until a date", {"type": "array", "items": _WAIVER}
    ),
    # code: only the site's word counts under a lock
    "checks_dir": _word(_only_site, "folder of the site's own checks, besides /etc/netdoctor/checks.d"),
    "python": _word(_kept, "the job's Python"),
    "user": _word(_kept, "user to look and run as (root only)"),
    "via": _one_of(VIAS, _torch, "what runs the all-reduce: the job's torch, or libnccl and the driver alone"),
    # claiming the job's vantage turns unknowns into passes
    "vantage": _one_of(VANTAGES, _only_site, "where netdoctor stands, if it cannot tell"),
    "budget_s": _above_zero(_kept, "seconds for all all-reduces together"),
    "dcgm_diag": Key("int", _integer(1, 4), _larger, "level of DCGM's diagnostic, run on idle GPUs; none if not said", _LEVEL),
    "lock": _switch(_larger, "what comes behind this file may only make it stricter", default=False),
}


def document_schema() -> dict[str, Any]:
    """The JSON Schema of the configuration file: every key with what it says."""
    top: dict[str, Any] = {}
    for name, key in KEYS.items():
        at = top
        *sections, last = name.split(".")
        for section in sections:
            at = at.setdefault(section, {"type": ["object", "null"], "properties": {}, "additionalProperties": False})[
                "properties"
            ]
        said = {"default": key.default} if key.default is not None else {}
        at[last] = {"description": key.about, "anyOf": [dict(key.schema), {"type": "null"}], **said}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "netdoctor's configuration",
        "type": "object",
        "properties": top,
        "additionalProperties": False,
    }


_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})


def from_text(kind: str, text: str, source: str) -> Any:
    """The value that an environment variable or an option means; `Key.check` then judges it.

    Lists are separated by commas, floors are ``64M=10,1G=40``, numbers ``eth0=9000``, waivers are a YAML list.
    """
    text = text.strip()
    if kind == "int" and re.fullmatch(r"[-+]?[0-9]{1,18}", text):
        return int(text)
    if kind == "float":
        try:
            return float(text)
        except ValueError:
            return text
    if kind == "bool" and text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    if kind == "texts":
        return [part.strip() for part in text.split(",") if part.strip()]
    if kind == "numbers":
        split = [part.partition("=") for part in text.split(",") if part.strip()]
        return {key.strip(): from_text("int", number.strip(), source) for key, _, number in split}
    if kind == "floor":
        if "=" not in text and not re.search("[KMG]", text, re.IGNORECASE):  # a rate alone, of no size
            raise WrongValueError(f"must say for which size: 64M={text}, in a file {{64M: {text}}}")
        pairs = [part.partition("=") for part in text.split(",") if part.strip()]
        return {key.strip(): from_text("float", rate, source) for key, _, rate in pairs}
    if kind == "yaml":
        try:
            return parse(text, source)[0]
        except ConfigError as error:
            raise WrongValueError(error.message) from None
    return text
