"""Which netdoctor this is, where more than one is there: imported is the first that a path names."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder

import netdoctor
from netdoctor.process import far
from netdoctor.textsafe import clean

NAME = "netdoctor"


def notes() -> Iterator[str]:
    """What a user has to know of it; nothing where it is the only one."""
    if namesake := _over_this_one():
        yield namesake
    if others := _others():
        own = os.path.dirname(os.path.abspath(netdoctor.__file__))
        by = " (PYTHONPATH)" if os.path.dirname(own) in _absolute(os.environ.get("PYTHONPATH", "").split(os.pathsep)) else ""
        yield clean(f"runs from {own}{by}; not used: {', '.join(others)}")


def _absolute(folders: list[str]) -> list[str]:
    return [os.path.abspath(folder) for folder in folders if folder]


def _others() -> list[str]:
    """Folders of other netdoctors that this Python would import, were the one that runs not there."""
    own = os.path.realpath(os.path.dirname(netdoctor.__file__))
    if own.startswith(os.path.realpath(sys.argv[0]) + os.sep):  # the one file, which was named
        return []
    specs = [PathFinder.find_spec(NAME, [folder]) for folder in sys.path]
    specs += [finder.find_spec(NAME, None) for finder in sys.meta_path if finder is not PathFinder]  # editable ones
    found = (os.path.dirname(spec.origin) for spec in specs if spec and spec.origin)
    return [folder for folder in dict.fromkeys(found) if os.path.realpath(folder) != own]


def _over_this_one() -> str | None:
    """Another project has the import name on PyPI: where both are installed, each has overwritten files of the other."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(netdoctor.__file__)))
    try:
        names = far.call(os.listdir, here, path=here)
    except OSError:
        return None
    others = (
        name.removesuffix(".dist-info") for name in names if name.startswith("netdoctor-") and name.endswith(".dist-info")
    )
    where = f"another project, lies over this one in {here}: pip uninstall netdoctor, then install ours again"
    return next((clean(f"{other}, {where}") for other in others), None)
