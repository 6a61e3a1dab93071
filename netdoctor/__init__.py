"""netdoctor: a doctor for GPU clusters.  `netdoctor.preflight()` looks from Python, see `netdoctor.child`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from netdoctor.child import Finding, LookError, Report, preflight

__version__ = "0.1.0"
__all__ = ["Finding", "LookError", "Report", "__version__", "preflight"]
_OF_CHILD: Final = frozenset(__all__) - {"__version__"}


def __getattr__(name: str) -> Any:
    """The Python API is imported where it is used: `netdoctor --version` imports nothing."""
    if name not in _OF_CHILD:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from netdoctor import child

    return getattr(child, name)
