"""The configuration: one YAML file, NETDOCTOR_* and the command line, merged in this order.

The file is ``--config`` (or NETDOCTOR_CONFIG), else /etc/netdoctor/config.yaml.  Where the site's file says ``lock: true``
it is always read, and every other source can only make it stricter: the one who is judged may not switch the judge off.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import field, fields, replace
from typing import Any, Final

from netdoctor.config import documents
from netdoctor.config.document import MAX_BYTES, ConfigError, Path, dotted, parse
from netdoctor.config.keys import KEYS, WrongValueError, from_text
from netdoctor.model import record
from netdoctor.policy import Waiver
from netdoctor.process import far, given
from netdoctor.textsafe import nearest

SITE_FILE: Final = "/etc/netdoctor/config.yaml"
PREFIX: Final = "NETDOCTOR_"
# Code that the environment may not bring in where somebody else's process is judged, or where it would run as root.
_NOT_FROM_ENVIRONMENT: Final = "checks_dir"
RECORDED: Final = ("profile", "fail_on", "disabled", "waivers")  # what decides an exit code, and goes into a snapshot
_GATES: Final = frozenset({"gate", "prolog"})


@record
class Job:
    """The job's shape; None: not said."""

    nodes: int | None = None
    ranks_per_node: int | None = None
    communicators: int | None = None
    gloo_groups: int | None = None
    all_to_all: bool | None = None
    paths: tuple[str, ...] | None = None
    shm_bytes: int | None = None


@record
class Expect:
    """What the site says must be there; None: not said."""

    gpus: int | None = None
    hcas: int | None = None
    hca_rate_gbps: float | None = None
    transport: str | None = None
    busbw_floor: Mapping[int, float] | None = None  # bytes -> GB/s
    rails_routed: bool | None = None
    peers: tuple[str, ...] | None = None
    rtt_ms: float | None = None
    gpu_model: str | None = None
    gpu_addresses: tuple[str, ...] | None = None
    nvlinks: int | None = None
    gpu_power_limit_w: float | None = None
    gpu_clock_mhz: float | None = None
    hca_addresses: tuple[str, ...] | None = None
    hca_firmware: tuple[str, ...] | None = None
    driver: str | None = None
    instance_type: str | None = None
    mtu: Mapping[str, int] | None = None


@record
class Config:
    """The effective configuration.  ``None`` is "not said": who reads it has the default."""

    job: Job = field(default_factory=Job)
    expected: Expect = field(default_factory=Expect)
    profile: str = "default"
    fail_on: str = "critical"
    disabled: tuple[str, ...] = ()
    waivers: tuple[Waiver, ...] = ()
    checks_dir: str | None = None
    python: str | None = None
    command: str | None = None  # the program that `netdoctor run` becomes: its Python is the job's
    launch: Mapping[str, Any] | None = None  # what a launcher in that command is told
    folder: str = ""  # that this program's Python imports from first
    as_root: bool = False  # --user root: the caller says that the job runs what the environment names, as root
    user: str | None = None
    via: str | None = None  # of facts.runs.Caller; None: torch where the job has it
    vantage: str | None = None
    budget_s: float | None = None
    dcgm_diag: int | None = None
    lock: bool = False
    behind: tuple[str, ...] = ()  # keys that were said behind a lock: they may only make it stricter
    sources: Mapping[str, str] = field(default_factory=dict)  # of each key that was said: file, variables or command line
    notes: tuple[str, ...] = ()  # what was not followed, and why: for stderr

    def as_answer(self) -> dict[str, Any]:
        """The answer to ``config:``, as JSON: only what was said.

        Keys: profile, job {…}, expected {…, busbw_floor {"67108864": 10.0}}, python, user, vantage, budget_s, dcgm_diag,
        command and launch (no options: what `netdoctor run` becomes, and what its launcher is told).
        """
        floor = self.expected.busbw_floor
        expected = {**_said(self.expected)}
        if floor is not None:
            expected["busbw_floor"] = {str(size): floor[size] for size in sorted(floor)}
        job, expected = (
            {key: list(value) if isinstance(value, tuple) else value for key, value in one.items()}
            for one in (_said(self.job), expected)
        )
        answer: dict[str, Any] = {"profile": self.profile, "job": job, "expected": expected}
        if self.behind:
            answer["behind_lock"] = list(self.behind)
        for name in ("python", "user", "vantage", "budget_s", "dcgm_diag", "command", "launch"):
            if getattr(self, name) is not None:
                answer[name] = getattr(self, name)
        return answer


def _said(part: Job | Expect) -> dict[str, Any]:
    return {f.name: getattr(part, f.name) for f in fields(part) if getattr(part, f.name) is not None}


def load(
    path: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    site: str = SITE_FILE,
    euid: int | None = None,
    defaults: Mapping[str, Any] | None = None,
    recorded: Mapping[str, Any] | None = None,
    expect: str | None = None,
) -> Config:
    """Read and merge.  `overrides` are command line options by dotted key (``"job.nodes": 4``), None for one not given;
    `defaults` are what the command has where nobody says anything.  `recorded` is the policy of a snapshot: what nobody says
    here is as it was there, unless this site's configuration is locked; then it only makes it stricter.  `expect` is a file of
    `netdoctor expect`: it says what is expected, and nothing else.

    Raises ConfigError (exit 2).  The site's file may be absent; a file that was named may not, and one that cannot be read
    is an error even if nobody named it: it might be locked.
    """
    environ = os.environ if environ is None else environ
    euid = os.geteuid() if euid is None else euid
    notes: list[str] = []
    named = path or environ.get(f"{PREFIX}CONFIG") or None
    layers: list[tuple[str, dict[str, Any]]] = []
    of_base: list[str] = []
    base = _file(site, must=False, notes=of_base)
    locked = bool(base and base.get("lock"))
    if base is not None and (locked or named is None):
        layers.append((site, base))
        notes += of_base
    if named is not None and not _same(named, site, base):
        layers.append((named, _file(named, must=True, notes=notes) or {}))
    if expect is not None:
        said = _file(expect, must=True, notes=notes) or {}
        if other := next((key for key in said if not key.startswith("expected.")), None):
            raise ConfigError("says more than what is expected: give it with --config", source=expect, key=other)
        layers.append((expect, said))
    from_env = _environment(environ)
    given = _overrides(overrides or {})
    profiles = {values.get("profile") for values in (from_env, given, *(v for _, v in layers))}
    if _NOT_FROM_ENVIRONMENT in from_env and (euid == 0 or profiles & _GATES):
        del from_env[_NOT_FROM_ENVIRONMENT]
        notes.append(f"{PREFIX}CHECKS_DIR is ignored as root and in a gate; use --checks-dir or the configuration file")
    layers += [(name, values) for name, values in (("environment", from_env), ("command line", given)) if values]
    if recorded is not None:
        layers.insert(1 if locked else 0, ("snapshot", _of_a_snapshot(recorded)))
    merged, behind, sources = _merge(layers, {site, named}, notes, defaults or {})
    built = _build(merged, tuple(notes))
    return replace(built, behind=tuple(key for key in behind if key.startswith("job.")), sources=sources)


def _of_a_snapshot(policy: Mapping[str, Any]) -> dict[str, Any]:
    """Nothing but what `setup.policy_data` writes: a file of somebody else's names no folder of checks and no user."""
    known = {key: policy[key] for key in RECORDED if key in policy}
    return _flatten(
        known, lambda at, message: ConfigError(message, source="a snapshot's policy of another shape", key=dotted(at))
    )


def _same(named: str, site: str, base: Mapping[str, Any] | None) -> bool:
    try:
        return base is not None and os.path.samefile(named, site)
    except OSError:
        return False


def _merge(
    layers: list[tuple[str, dict[str, Any]]], files: set[str | None], notes: list[str], defaults: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...], dict[str, str]]:
    """Later layers win; behind the first locked one of `files` they only tighten, and what they may not loosen is noted.

    Returned are the values, the keys that were said behind a lock, and who said what counts.

    The site's file comes first.  One that was named locks as well: a gate that names its file means it for every job.
    """
    merged: dict[str, Any] = {}
    behind: dict[str, None] = {}
    sources: dict[str, str] = {}
    lock = locked_by = None
    for source, values in layers:
        lock = locked_by
        if locked_by is None and source in files and values.get("lock"):
            locked_by = source
        for key, value in values.items():
            if lock is None:
                merged[key], sources[key] = value, source
                continue
            behind[key] = None
            before = merged.get(key, defaults.get(key, KEYS[key].default))
            tightest = KEYS[key].stricter(before, value)
            if tightest != before:
                sources[key] = source if tightest == value else f"{sources.get(key, 'default')} and {source}"
            if tightest != value:
                notes.append(f"{key} from the {source} counts only where it is stricter: {lock} is locked")
            merged[key] = tightest
    return {**defaults, **merged}, tuple(behind), sources


def _build(merged: Mapping[str, Any], notes: tuple[str, ...]) -> Config:
    parts: dict[str, dict[str, Any]] = {"job": {}, "expected": {}, "": {}}
    for key, value in merged.items():
        section, _, name = key.rpartition(".")
        if value is not None:
            parts[section][name] = value
    return Config(job=Job(**parts["job"]), expected=Expect(**parts["expected"]), **parts[""], notes=notes)


def said_by(config: Config, key: str) -> str:
    """Who said the value of a key that counts, by the name that its author knows: an option, a variable, ``FILE:LINE: key``."""
    source = config.sources.get(key, "")
    if named := {"command line": _option(key), "environment": variable(key), "": key}.get(source):
        return named
    try:
        line = parse(given.text(source), source)[1].get(tuple(key.split(".")))
    except (OSError, ValueError, ConfigError):  # a snapshot, or gone since
        line = None
    return f"{source}:{line}: {key}" if line else f"{source}: {key}"


def _file(path: str, *, must: bool, notes: list[str]) -> dict[str, Any] | None:
    try:
        raw = given.whole(path, MAX_BYTES, far.LIMIT)
    except (FileNotFoundError, NotADirectoryError) as error:
        if must or far.call(os.path.islink, path, path=os.path.abspath(path)):  # a ConfigMap's link that leads to nothing
            raise ConfigError(f"{error.strerror or error}{_leads(path)}", source=path) from None
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot be read: {getattr(error, 'strerror', None) or error}", source=path) from None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError("not UTF-8", source=path, line=raw.count(b"\n", 0, error.start) + 1) from None
    data, lines = parse(text, path)
    nothing = f"{path} is empty: nothing is set by it"
    if data is None:
        notes += [nothing] * (not text.strip())  # one of comments alone is what a package brings
        return {}

    def wrong(at: Path, message: str) -> ConfigError:
        line = next((lines[at[:n]] for n in range(len(at), -1, -1) if at[:n] in lines), None)
        return ConfigError(message, source=path, line=line, key=dotted(at))

    flat = _flatten(data, wrong)
    notes += [nothing] * (not flat and bool(data))
    return flat


def _leads(path: str) -> str:
    """Where a link leads that leads to nothing; "" of what is no link."""
    try:
        return f": it is a link to {far.call(os.readlink, path, path=os.path.abspath(path))}"
    except (OSError, ValueError):
        return ""


def _flatten(data: Any, wrong: Callable[[Path, str], ConfigError]) -> dict[str, Any]:
    """The document as ``{"job.nodes": 4, …}``, every value checked."""
    if not isinstance(data, dict):
        raise wrong((), "the configuration must be a mapping of keys to values")
    if what := documents.told(data.get("schema")):
        raise wrong(("schema",), f"no configuration, but {what}")
    sections = {key.partition(".")[0] for key in KEYS if "." in key}
    top = {key for key in KEYS if "." not in key} | sections
    out: dict[str, Any] = {}
    for name, value in data.items():
        if name not in top:
            raise wrong((name,), _unknown_key(name, top, ""))
        if name not in sections:
            out[name] = _checked(name, value, (name,), wrong)
            continue
        if value is not None and not isinstance(value, dict):
            raise wrong((name,), "must be a mapping of keys to values")
        below = {key.partition(".")[2] for key in KEYS if key.startswith(f"{name}.")}
        for inner, said in (value or {}).items():
            if inner not in below:
                raise wrong((name, inner), _unknown_key(inner, below, name))
            out[f"{name}.{inner}"] = _checked(f"{name}.{inner}", said, (name, inner), wrong)
    return {key: value for key, value in out.items() if value is not None}


def checked(document: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `expected:` in a document, checked as a file's are, by name.  Raises ConfigError."""
    flat = _flatten(dict(document), lambda at, message: ConfigError(message, source="expected", key=dotted(at)))
    return {key.partition(".")[2]: value for key, value in flat.items() if key.startswith("expected.")}


def _checked(key: str, value: Any, at: Path, wrong: Callable[[Path, str], ConfigError]) -> Any:
    try:
        return None if value is None else KEYS[key].check(value)
    except WrongValueError as error:
        raise wrong((*at, *error.path), _with_meaning(key, error)) from None


def _with_meaning(key: str, error: WrongValueError) -> str:
    """What is wrong with a value, and what the key says: its unit stands there."""
    return f"{error.message} ({KEYS[key].about})"


def _unknown_key(name: str, known: set[str], section: str | None = None) -> str:
    """``unknown key; did you mean nodes?``; `section`: that of the file where it stands, "": none."""
    if section is not None:
        places = [key.rpartition(".")[0] for key in KEYS if key.rpartition(".")[2] == name]
        if places:
            return (
                f"unknown key here: it belongs under {places[0]}:" if places[0] else "unknown key here: it belongs at the top"
            )
    return "unknown key" + (nearest(name, sorted(known), cutoff=0.5) or f"; known are {', '.join(sorted(known))}")


def variable(key: str) -> str:
    """The environment variable of a dotted key: ``job.nodes`` is NETDOCTOR_JOB_NODES."""
    return PREFIX + key.replace(".", "_").upper()


def variables() -> tuple[str, ...]:
    """The environment variables that say what a key says."""
    return tuple(map(variable, KEYS))


def _environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """What they say.  No other name is an error: Kubernetes puts NETDOCTOR_SERVICE_HOST into pods beside such a Service."""
    said = {key: (name, environ[name]) for key in KEYS if environ.get(name := variable(key), "").strip()}
    return {key: _from_text(key, text, name) for key, (name, text) in sorted(said.items(), key=lambda one: one[1])}


def _overrides(given: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in given.items():
        if value is None:
            continue
        if key not in KEYS:
            raise ConfigError(_unknown_key(key, set(KEYS)), source="command line", key=key)
        if isinstance(value, str):
            out[key] = _from_text(key, value, _option(key))
        else:
            out[key] = _checked(key, value, (key,), lambda at, text: ConfigError(text, source=_option(dotted(at))))
    return out


def _option(key: str) -> str:
    """The option of a dotted key: budget_s is --budget."""
    return "--" + key.removesuffix("_s").replace(".", "-").replace("_", "-")


def _from_text(key: str, text: str, source: str) -> Any:
    try:
        return KEYS[key].check(from_text(KEYS[key].kind, text, source))
    except WrongValueError as error:
        raise ConfigError(_with_meaning(key, error), source=source, key=dotted(error.path)) from None
