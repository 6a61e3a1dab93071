"""Where checks come from: the built-in files, entry points of installed packages, and a drop-in directory.

A file that others can change is refused, a file that cannot be used is broken: either is a result of its own
(``plugin.refused`` is unknown, because a check that the site wanted did not look; ``plugin.broken`` is an error), and neither
touches the other checks.  Two checks with one id are the caller's mistake: `PluginError`, exit 2.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import operator
import os
import re
import stat
import sys
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from typing import Any, Final

from netdoctor.api import CheckSpec
from netdoctor.causes.results import own_result
from netdoctor.facts.registry import RUNS, SOURCES
from netdoctor.model import CheckResult, Finding, Fix, Status, record
from netdoctor.process import apart, paths

GROUP: Final = "netdoctor.plugins"
DROPIN_DIR: Final = "/etc/netdoctor/checks.d"
MAX_FILE: Final = 1 << 20  # bytes of one drop-in file
_ID: Final = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+")
_FILE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*\.py")
_BUILT_IN: Final = "built in"


class PluginError(ValueError):
    """The checks as a whole cannot be used: an id clash, or a directory that was named and is not there.  Exit 2."""


class NeedsError(TypeError):
    """A judge function whose parameters do not say which facts it needs."""


@record
class Need:
    """One parameter of a judge, and the fact that it takes."""

    parameter: str
    type: type[Any]


@dataclass
class Loaded:
    """What was found: checks in a fixed order, results about plugins, and where each check is from (id -> text)."""

    specs: tuple[CheckSpec, ...] = ()
    results: tuple[CheckResult, ...] = ()
    sources: dict[str, str] = field(default_factory=dict)


def load(
    checks_dir: str | None = None,
    *,
    dropin_dir: str = DROPIN_DIR,
    search: list[str] | None = None,
    euid: int | None = None,
    site: bool = True,
) -> Loaded:
    """Every check: built in, entry points on `search` (default sys.path), `dropin_dir` if it is there, and `checks_dir`.
    Without `site` those that are built in.

    Raises PluginError.  With euid 0 nothing is loaded that anybody but root can change.
    """
    euid = os.geteuid() if euid is None else euid
    taking = _Taking(frozenset({0, euid}), as_root=euid == 0)
    for name in built_in():
        taking.module(_BUILT_IN, name, functools.partial(importlib.import_module, f"netdoctor.checks.{name}"))
    if not site:
        return taking.loaded()
    for point in entry_points(sys.path if search is None else search):
        taking.entry_point(point)
    if os.path.lexists(dropin_dir):
        taking.directory(dropin_dir)
    if checks_dir is not None and os.path.abspath(checks_dir) != dropin_dir:
        if not os.path.isdir(checks_dir):
            raise PluginError(f"{checks_dir}: {paths.locked(checks_dir) or 'no such directory of checks'}")
        taking.directory(os.path.abspath(checks_dir))
    return taking.loaded()


def of_site(checks_dir: str | None) -> bool:
    """Whether `load` would run code that is not netdoctor's."""
    return checks_dir is not None or os.path.lexists(DROPIN_DIR) or bool(entry_points(sys.path))


def built_in() -> tuple[str, ...]:
    """Module names in netdoctor/checks, sorted: the same from a link, a wheel and a zip file (pkgutil asks the importer)."""
    import pkgutil

    import netdoctor.checks

    found = (m.name for m in pkgutil.iter_modules(netdoctor.checks.__path__) if not m.ispkg)
    return tuple(sorted(name for name in found if not name.startswith("_")))


@contextlib.contextmanager
def contained(name: str) -> Iterator[None]:
    """Run a site's code: what it prints is not the report's, and the working directory stays.

    If it ends the process, `name` is what `process.apart` says of it.
    """
    apart.running(name)
    sys.stdout.flush()
    kept, here, folder = os.dup(1), os.getpid(), None
    with contextlib.suppress(OSError):
        folder = os.open(".", os.O_PATH | os.O_CLOEXEC)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if os.getpid() != here:  # a child of that code's own has no report to make
            os._exit(1)
        if sys.__stdout__ is not None:
            sys.__stdout__.flush()
        os.dup2(kept, 1)
        os.close(kept)
        if folder is not None:
            with contextlib.suppress(OSError):
                os.fchdir(folder)
            os.close(folder)


class _Taking:
    """Collects; every border is crossed in one place (`_try`)."""

    def __init__(self, owners: frozenset[int], as_root: bool) -> None:
        self._owners, self._as_root = owners, as_root
        self._specs: dict[str, CheckSpec] = {}
        self._sources: dict[str, str] = {}
        self._refused: list[Finding] = []
        self._broken: list[Finding] = []

    def module(self, source: str, subject: str, bring: Callable[[], types.ModuleType], *, own: bool = True) -> None:
        """Take the checks of the module that `bring` imports; with `own` only those that are defined in it."""
        try:
            with contained(subject) if source != _BUILT_IN else contextlib.nullcontext():
                module = bring()
            specs = [s for s in _specs_of(module) if not own or s.judge.__module__ == module.__name__]
        except (SystemExit, KeyboardInterrupt):
            return self._break(subject, "ends the program while it is imported")
        except Exception as error:  # noqa: BLE001 - the border: whatever a plugin does while it is imported costs this plugin
            return self._break(subject, f"cannot be imported: {type(error).__name__}: {error}")
        if not specs:
            return self._break(subject, "holds no check (no function with @check)")
        for spec in specs:
            self._take(spec, source, subject)
        return None

    def entry_point(self, point: EntryPoint) -> None:
        if self._as_root and (reason := _trusted(point.origin, self._owners) or _untrusted_module(point.module, self._owners)):
            return self._refuse(point.name, f"{point.origin}: {reason}")

        def bring() -> types.ModuleType:
            module = importlib.import_module(point.module)
            if not point.attribute:
                return module
            holder = types.ModuleType(point.module)
            holder.__dict__["check"] = operator.attrgetter(point.attribute)(module)
            return holder

        return self.module(f"entry point {point.name} of {point.package}", point.name, bring, own=False)

    def directory(self, path: str) -> None:
        """Take every NAME.py of a drop-in directory, compiled from the descriptor that passed the test."""
        folder, reason = _open(path, self._owners)
        if folder is None:
            return self._refuse(path, reason)
        try:
            names = sorted(n for n in os.listdir(folder) if n.endswith(".py") and not n.startswith((".", "_")))
        except OSError as error:
            return self._refuse(path, error.strerror or str(error))
        finally:
            os.close(folder)
        for name in names:
            self._file(os.path.join(path, name), name)
        return None

    def _file(self, path: str, name: str) -> None:
        if not _FILE.fullmatch(name):
            return self._refuse(path, "its name is not letters, digits, - and _")
        fd, reason = _open(path, self._owners)
        if fd is None:
            return self._refuse(path, reason)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            return self._refuse(path, "not a file")
        with open(fd, "rb") as stream:
            code = stream.read(MAX_FILE + 1)
        if len(code) > MAX_FILE:
            return self._break(path, f"larger than {MAX_FILE >> 20} MiB")
        return self.module(f"file {path}", path, functools.partial(_compiled, path, name.removesuffix(".py"), code))

    def _take(self, spec: CheckSpec, source: str, subject: str) -> None:
        if self._specs.get(spec.id) is spec:  # the same function, by two names
            return None
        if not _ID.fullmatch(spec.id) or spec.id.startswith("plugin."):
            return self._break(subject, f"{spec.id!r} is no id of a check (area.name, and plugin. is netdoctor's)")
        try:
            needs(spec)
        except NeedsError as error:
            return self._break(subject, str(error))
        if spec.id in self._specs:
            raise PluginError(f"two checks have the id {spec.id}: {self._sources[spec.id]}, and {source} ({subject})")
        self._specs[spec.id] = spec
        self._sources[spec.id] = source
        return None

    def _refuse(self, subject: str, reason: str | None) -> None:
        owner = "root" if self._as_root else "root or you"
        how = f"make every folder on the way and the file owned by {owner} and writable by nobody else{_user_namespace()}"
        self._refused.append(
            Finding(
                Status.UNKNOWN,
                f"not loaded, so its checks did not look: {reason}",
                subject,
                how=how,
                fix=Fix("take away what others may change", ("namei -l PATH   # shows owners and modes on the way",)),
            )
        )

    def _break(self, subject: str, reason: str) -> None:
        self._broken.append(Finding(Status.ERROR, reason, subject))

    def loaded(self) -> Loaded:
        found = {"plugin.refused": self._refused, "plugin.broken": self._broken}
        results = tuple(own_result(id, findings) for id, findings in found.items() if findings)
        return Loaded(tuple(self._specs.values()), results, self._sources)


def _specs_of(module: types.ModuleType) -> Iterator[CheckSpec]:
    for value in vars(module).values():
        spec = getattr(value, "__netdoctor_check__", None)
        if isinstance(spec, CheckSpec):
            yield spec


def _compiled(path: str, stem: str, code: bytes) -> types.ModuleType:
    """A module from the bytes that were tested: what lies at `path` by now does not matter.  Its own name, no byte code."""
    module = types.ModuleType(f"netdoctor_dropin.{stem}")
    module.__file__ = path
    compiled = compile(code, path, "exec", dont_inherit=True)
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module  # dataclasses and type hints look there
    try:
        exec(compiled, module.__dict__)  # noqa: S102 - the site's check, from bytes whose owner was tested
    except BaseException:
        if before is None:
            del sys.modules[module.__name__]
        else:
            sys.modules[module.__name__] = before
        raise
    return module


# Needs


@functools.lru_cache(maxsize=256)
def needs(spec: CheckSpec) -> tuple[Need, ...]:
    """The facts that a judge takes, from its type hints.  Raises NeedsError with what to write instead."""
    judge = spec.judge
    try:
        hints = typing.get_type_hints(judge)
        parameters = inspect.signature(judge).parameters
    except (NameError, TypeError, AttributeError, SyntaxError, ValueError) as error:
        raise NeedsError(f"{spec.id}: its type hints cannot be read: {error}") from None
    if not parameters:
        raise NeedsError(f"{spec.id}: takes no facts, so it cannot look at anything")
    return tuple(_need(spec.id, parameter, hints) for parameter in parameters.values())


def _need(id: str, parameter: inspect.Parameter, hints: dict[str, Any]) -> Need:
    name = parameter.name
    if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
        raise NeedsError(f"{id}: the parameter {name} must be a plain one, with a fact as its type")
    if name not in hints:
        raise NeedsError(f"{id}: the parameter {name} has no type; write {name}: Net, for example")
    hint, known = hints[name], SOURCES.keys() | set(RUNS)
    if not isinstance(hint, type) or not _is_fact(hint, known):
        shown = getattr(hint, "__name__", str(hint).replace("netdoctor.model.", ""))
        raise NeedsError(
            f"{id}: the parameter {name} has the type {shown}, which is no fact; facts are {', '.join(sorted(known))}"
        )
    return Need(name, hint)


def _is_fact(kind: type[Any], known: set[str]) -> bool:
    return kind.__name__ in known and kind.__module__.startswith("netdoctor.")


# Entry points, without importlib.metadata (30 ms): most machines have none, and finding that out is a listing of sys.path.


@record
class EntryPoint:
    """One line of an entry_points.txt: ``name = module:attribute``."""

    name: str
    module: str
    attribute: str
    package: str  # "site-checks-1.0", from the folder's name
    origin: str  # the entry_points.txt


def entry_points(search: list[str]) -> tuple[EntryPoint, ...]:
    """The entry points of our group in every ``*.dist-info`` and ``*.egg-info`` on `search`, sorted by name.

    The format is packaging.python.org/specifications/entry-points: an ini file without interpolation.
    """
    found: dict[tuple[str, str], EntryPoint] = {}
    for folder in dict.fromkeys(p for p in search if p.startswith("/")):
        try:
            names = [n for n in os.listdir(folder) if n.endswith((".dist-info", ".egg-info"))]
        except OSError:  # not there, or a zip file: nothing installed
            continue
        for name in sorted(names):
            origin = f"{folder}/{name}/entry_points.txt"
            try:
                with open(origin, "rb") as stream:
                    text = stream.read(MAX_FILE)
            except OSError:
                continue
            if GROUP.encode() in text:
                package = name.rpartition(".")[0]
                for point in _lines(text.decode("utf-8", "replace"), package, origin):
                    found.setdefault((point.package, point.name), point)
    return tuple(sorted(found.values(), key=lambda p: (p.name, p.package)))


def _lines(text: str, package: str, origin: str) -> Iterator[EntryPoint]:
    section = ""
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
        elif section == GROUP and line and line[0] not in "#;":
            name, equals, value = line.partition("=")
            module, _, attribute = value.partition("[")[0].strip().partition(":")
            if equals:
                yield EntryPoint(name.strip(), module.strip(), attribute.strip(), package, origin)


# Trust


def _open(path: str, owners: frozenset[int]) -> tuple[int | None, str | None]:
    from netdoctor.host.trust import open_trusted

    try:
        return open_trusted(path, owners)
    except ValueError:
        return None, "its name holds a NUL byte"


def _trusted(path: str, owners: frozenset[int]) -> str | None:
    fd, reason = _open(path, owners)
    if fd is not None:
        os.close(fd)
    return reason


def _untrusted_module(name: str, owners: frozenset[int]) -> str | None:
    """Why root may not import what an entry point names: each step of the name is asked, and none of it is run."""
    step, places = "", list[str]()
    for part in name.split("."):
        spec = None
        with contextlib.suppress(ImportError, ValueError):
            spec = PathFinder.find_spec(f"{step}.{part}", places) if step else importlib.util.find_spec(part)
        if spec is None or not spec.origin or not spec.origin.startswith("/"):
            return f"the file of {name} cannot be found before it is imported"
        if reason := _trusted(os.path.dirname(spec.origin), owners) or _trusted(spec.origin, owners):
            return reason
        step, places = f"{step}.{part}".lstrip("."), list(spec.submodule_search_locations or ())
    return None


def _user_namespace() -> str:
    """A hint where uid 0 is not the host's: the host's own files then belong to nobody (user_namespaces(7))."""
    try:
        with open("/proc/self/uid_map", encoding="ascii") as stream:
            identity = stream.read().split() == ["0", "0", "4294967295"]
    except OSError:
        return ""
    return "" if identity else " (in this user namespace, files of the host's root belong to nobody)"
