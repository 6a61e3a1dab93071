"""``--show-completion SHELL`` and ``--install-completion SHELL``: typer takes no name where it can guess the shell."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
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
    if shell or len(arguments) > 1:
        os.environ[_BY_NAME] = "1"
    return NAME
