"""Every key of the configuration: what its value must be, and which of two values is the stricter one."""

from __future__ import annotations

import datetime
import difflib
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from netdoctor.config.document import ConfigError, Path, parse
from netdoctor.policy import FAIL_ON_ORDER, PROFILE_ORDER, Waiver, strictest

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


@dataclass(frozen=True)
class Key:
    """One key."""

    kind: str
    check: Callable[[Any], Any]  # raises WrongValueError
    stricter: Callable[[Any, Any], Any]  # (the site's or None, another source's) -> the stricter of the two
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


def _integer(low: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise WrongValueError(f"must be a whole number from {low}, not {_shown(value)}")
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
            close = difflib.get_close_matches(str(value), choices, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise WrongValueError(f"must be one of {', '.join(choices)}, not {_shown(value)}{hint}")
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
            close = difflib.get_close_matches(name, WAIVER_KEYS, n=1, cutoff=0.5)
            raise WrongValueError(f"unknown key; did you mean {close[0]}?" if close else "unknown key", (name,))
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


def _kept(site: Any, given: Any) -> Any:
    return given if site is None else site


def _carrier(site: str | None, given: str) -> str | None:
    """That sockets carry the data excuses what is missing."""
    return None if site is None and NETWORKS[given] == "Socket" else _kept(site, given)


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


KEYS: Final[dict[str, Key]] = {
    "job.nodes": Key("int", _integer(1), _from(2)),  # one node excuses what only several need
    "job.ranks_per_node": Key("int", _integer(1), _from(math.inf)),  # else the launcher's word, or the GPUs that are seen
    "job.communicators": Key("int", _integer(1), _larger),
    "job.gloo_groups": Key("int", _integer(0), _from(1)),
    "job.all_to_all": Key("bool", _flag, _larger),
    "expected.gpus": Key("int", _integer(0), _from(1)),
    "expected.hcas": Key("int", _integer(0), _from(1)),
    "expected.hca_rate_gbps": Key("float", _number, _larger),
    "expected.transport": Key("text", _network, _carrier),
    "expected.busbw_floor": Key("floor", _floor, _floors),
    "expected.rails_routed": Key("bool", _flag, _larger),
    "expected.peers": Key("texts", _texts, _more),  # a near one's round trip would count in the place of `rtt_ms`
    "expected.rtt_ms": Key("float", _number, _from(math.inf)),  # one of nearly 0 passes where none is known
    "expected.gpu_model": Key("text", _text, _kept),
    "expected.gpu_addresses": Key("texts", _texts, _and),
    "expected.nvlinks": Key("int", _integer(1), _larger),
    "expected.hca_addresses": Key("texts", _texts, _and),
    "expected.hca_firmware": Key("texts", _texts, _kept),
    "expected.driver": Key("text", _text, _kept),
    "expected.mtu": Key("numbers", _numbers, _each),
    "profile": Key("text", _choice(PROFILE_ORDER), _by(PROFILE_ORDER, "default"), "default"),
    "fail_on": Key("text", _choice(FAIL_ON_ORDER[::-1]), _by(FAIL_ON_ORDER, "critical"), "critical"),
    "disabled": Key("texts", _texts, _common),
    "waivers": Key("yaml", _waivers, _common),
    "checks_dir": Key("text", _text, _only_site),  # code: only the site's word counts under a lock
    "python": Key("text", _text, _kept),
    "user": Key("text", _text, _kept),
    "via": Key("text", _choice(VIAS), _torch),
    "vantage": Key("text", _choice(VANTAGES), _only_site),  # claiming the job's vantage turns unknowns into passes
    "budget_s": Key("float", _number, _kept),
    "lock": Key("bool", _flag, _larger),
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
        pairs = [part.partition("=") for part in text.split(",") if part.strip()]
        return {key.strip(): from_text("float", rate, source) for key, _, rate in pairs}
    if kind == "yaml":
        try:
            return parse(text, source)[0]
        except ConfigError as error:
            raise WrongValueError(error.message) from None
    return text
