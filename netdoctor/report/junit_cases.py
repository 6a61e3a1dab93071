"""JUnit documents, written by junitparser (the extra ``junit``): the same way for every command."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from netdoctor.report.extras import MissingExtraError
from netdoctor.textsafe import clean

if TYPE_CHECKING:
    from junitparser import TestCase, TestSuite


def needed() -> None:
    """Raises MissingExtraError where the library is not there."""
    try:
        import junitparser  # noqa: F401
    except ImportError:
        raise MissingExtraError("JUnit", "junitparser", "junit") from None


def case(
    classname: str, name: str, kind: str = "", *, message: str = "", type: str = "", detail: str = "", out: str = ""
) -> TestCase:
    """A test case; `kind` is "failure", "error", "skipped" or "" for one that passed.  Texts may be anybody's."""
    needed()
    from junitparser import Error, Failure, Skipped, TestCase

    made = TestCase(clean(name), classname=clean(classname))
    if kind:
        result = {"failure": Failure, "error": Error, "skipped": Skipped}[kind](clean(message), clean(type) or None)
        if detail:
            result.text = clean(detail, lines=True)
        made.result = [result]
    if out:
        made.system_out = clean(out, lines=True)
    return made


def suite(
    name: str, cases: Iterable[TestCase], *, hostname: str = "", timestamp: str = "", properties: Iterable[tuple[str, str]] = ()
) -> TestSuite:
    """A suite that counts its cases."""
    needed()
    from junitparser import TestSuite

    made = TestSuite(clean(name))
    if hostname:
        made.hostname = clean(hostname)
    if timestamp:
        made.timestamp = clean(timestamp)
    for key, value in properties:
        made.add_property(clean(key), clean(value))
    made.add_testcases(list(cases))
    return made


def document(*suites: TestSuite) -> str:
    """XML text with its declaration."""
    needed()
    from junitparser import JUnitXml

    root: Any = JUnitXml("netdoctor")  # not all of it is typed
    root.extend(suites)
    root.update_statistics()
    stream = io.BytesIO()
    root.write(stream, pretty=True)
    return stream.getvalue().decode("utf-8").replace("\t", " ")  # its indentation
