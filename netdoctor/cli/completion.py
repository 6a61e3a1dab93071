"""What a shell completes, and ``--show-completion SHELL``, ``--install-completion SHELL``: typer has them without a name."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from typing import Final

NAME: Final = "netdoctor"
_OPTIONS: Final = ("--show-completion", "--install-completion")
_BY_NAME: Final = "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"  # typer's: the options take a shell


def asked(arguments: Sequence[str]) -> str | None:
    """The name by which typer has to know this program: that of the command, whatever it was started as; None: no matter.

    A script of completion calls the command, so it must be there.  Raises ValueError with what to do.  Asked at every
    start and at every press of a key: nothing is imported for it that knows configuration or checks.
    """
    if f"_{NAME.upper()}_COMPLETE" in os.environ:
        return NAME
    option, _, shell = next(iter(arguments), "").partition("=")
    if option not in _OPTIONS:
        return None
    if shutil.which(NAME) is None:
        raise ValueError(
            f"{option}: completion is of the command {NAME}, and PATH has none: pip install . in the clone makes it"
        )
    _plain()
    if shell or len(arguments) > 1:
        os.environ[_BY_NAME] = "1"
    return NAME


def _plain() -> None:
    """typer prints the member of its enum, not the shell's name: from Python 3.11 on, that is "Shells.bash"."""
    with contextlib.suppress(ImportError, AttributeError):
        from typer._completion_shared import Shells

        Shells.__str__ = str.__str__  # type: ignore[method-assign]


def one_of(known: str, *, several: bool = False) -> Callable[[str], list[str]]:
    """A completer for words that are `module:name` (a collection, or a function that gives one); `several` with commas between.

    Imported at a press of the key: no other start of the program pays for it.
    """

    def complete(incomplete: str) -> list[str]:
        import pkgutil

        words = pkgutil.resolve_name(known)
        before, comma, begun = incomplete.rpartition(",") if several else ("", "", incomplete)
        taken = before.split(",")
        each = (str(word) for word in (words() if callable(words) else words))
        return [f"{before}{comma}{word}" for word in each if word.startswith(begun) and word not in taken]

    return complete
