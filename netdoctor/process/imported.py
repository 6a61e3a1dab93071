"""Whether what was imported is what was meant: a file in a folder of PYTHONPATH, or in the working folder, comes before the
module of its name, Python's own or a dependency of ours."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

NEEDED = ("psutil", "pynvml", "pyudev", "typer", "yaml")  # dependencies of pyproject.toml, by what is imported


def hidden_by(error: Exception) -> str:
    """Which file an exception came of that hides a module, and what mends it; "" where it came of none."""
    for name in sorted({*sys.stdlib_module_names, *NEEDED}):
        file = _file(sys.modules.get(name)) or _unfinished(name, error)
        if file and _involved(error, name, file) and (mend := _mend(name, file)):
            whose = "Python's own" if name in sys.stdlib_module_names else "the installed"
            return f"{file} hides {whose} {name}: {mend}"
    return ""


def _file(module: object) -> str:
    return os.path.abspath(found) if isinstance(found := getattr(module, "__file__", None), str) else ""


def _unfinished(name: str, error: Exception) -> str:
    """The file of a module whose import failed, and that is in sys.modules no more."""
    bare = (f"{os.sep}{name}.py", f"{os.sep}{name}{os.sep}__init__.py")
    return next((file for file in _ran(error) if file.endswith(bare)), "")


def _ran(error: Exception) -> list[str]:
    """The files in which an exception stood, or that could not be read as Python."""
    files, at = [], error.__traceback__
    while at is not None:
        files.append(os.path.abspath(at.tb_frame.f_code.co_filename))
        at = at.tb_next
    said = getattr(error, "filename", None) if isinstance(error, SyntaxError) else getattr(error, "path", None)
    return [*files, os.path.abspath(said)] if isinstance(said, str) else files


def _involved(error: Exception, name: str, file: str) -> bool:
    """An error of ours is not blamed on who lies there and works: on its way it met this module, or what that lacks."""
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == name:
        return True
    return _file(getattr(error, "obj", None)) == file or file in _ran(error)  # AttributeError.obj: the module that lacks it


def _mend(name: str, file: str) -> str:
    """How the module of that name comes to its own; "" where the file is that module."""
    where = os.path.dirname(file)
    folder = os.path.dirname(where) if os.path.basename(file) == "__init__.py" else where
    try:
        here = os.getcwd()
    except OSError:  # the working folder is gone
        here = ""
    # An empty part of PYTHONPATH is the working folder.
    told = os.environ.get("PYTHONPATH")
    named = [os.path.abspath(part) if part else here for part in told.split(os.pathsep)] if told else []
    if folder not in named and folder != here:
        return ""
    behind = [part for part in sys.path if os.path.abspath(part or ".") != folder]
    if name not in sys.builtin_module_names and PathFinder.find_spec(name, behind) is None:
        return ""
    if folder in named and folder != here:
        return "take its folder out of PYTHONPATH"
    return "give it another name, or start netdoctor in another folder"
