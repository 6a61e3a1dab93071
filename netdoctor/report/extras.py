"""Libraries that only some outputs need: extras of the package, named where they are not there."""

from __future__ import annotations


class MissingExtraError(RuntimeError):
    """A library is not installed; says what installs it."""

    def __init__(self, what: str, library: str, extra: str) -> None:
        super().__init__(f"{what} needs {library}: pip install 'cluster-netdoctor[{extra}]'")
