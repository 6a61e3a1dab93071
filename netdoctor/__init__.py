"""netdoctor: a doctor for GPU clusters.  `netdoctor.preflight()` looks from Python, see `netdoctor.child`.

Nothing is imported here, not even from the standard library, and an old Python can read it: by `python -m netdoctor` this runs
before `netdoctor.__main__`, which says what is wrong with the interpreter, and takes the working folder out of sys.path.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from netdoctor.child import Finding, LookError, Report, preflight

__version__ = "0.1.0"
__all__ = ["Finding", "LookError", "Report", "__version__", "preflight"]
_OF_CHILD = frozenset(__all__) - {"__version__"}


def __getattr__(name: str) -> "Any":
    """The Python API is imported where it is used: `netdoctor --version` imports nothing."""
    if name not in _OF_CHILD:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from netdoctor import child

    return getattr(child, name)
