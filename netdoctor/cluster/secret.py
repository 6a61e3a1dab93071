"""What shows that the nodes of a common run are those of one job: a token that the launcher hands out, else MUNGE.

A job's number, its node list and its ports are known to every user of a cluster, so they prove nothing.  What does: a token in
the environment or a file of this user's, and a credential of MUNGE, Slurm's own engine, which only the same user can decode
(munge(1), --restrict-uid).  docs/meeting.md tells why no other engine that launchers have does it.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import shlex
import stat
import subprocess
from collections.abc import MutableMapping
from dataclasses import field
from typing import Final

from netdoctor.cluster.observations import Proof
from netdoctor.model import record
from netdoctor.process import given

VARIABLE: Final = "NETDOCTOR_TOKEN"
# 16 characters drawn at random are 64 bits even of hex digits; who sees a meeting can try tokens offline.
TOKEN: Final = re.compile(r"[!-~]{16,1024}")
HOW: Final = "openssl rand -hex 32, the same on every node: docs/meeting.md"
SECONDS: Final = 5.0  # for munged to answer
# An installation's own folders, never PATH: root asks, too.
_FOLDERS: Final = ("/usr/bin", "/usr/local/bin", "/opt/munge/bin")
_REPLAYED: Final = 17  # EMUNGE_CRED_REPLAYED of munge.h: decoded, and not for the first time on this host
_CLOCKS: Final = {15: "an expired", 16: "a rewound"}  # EMUNGE_CRED_EXPIRED, _REWOUND: beyond --ttl, or of the future


class SecretError(ValueError):
    """One line that says what is wrong with the token, without its text."""


@record
class Secret:
    """What both ends of a connection know and nobody else does."""

    proof: Proof = Proof.NOTHING
    key: bytes = field(default=b"", repr=False)
    credential: str = field(default="", repr=False)  # of MUNGE: the key, for this user alone

    def derive(self, *parts: str) -> bytes:
        """A key for one purpose: HMAC-SHA-256 of the secret over what it is for."""
        return hmac.digest(self.key, "\0".join(parts).encode(), "sha256")


def take(file: str | None, environ: MutableMapping[str, str]) -> Secret:
    """The token, from `file` ("-": standard input) or the environment; without one nothing.  Raises SecretError.

    The environment does not keep it: whom this process starts does not get it.
    """
    said = environ.pop(VARIABLE, "").strip()
    if file is not None:
        said = _read(file).strip()
    elif not said:
        return Secret()
    if not TOKEN.fullmatch(said):
        where = f"--token-file {file}" if file is not None else VARIABLE
        # no "NETDOCTOR_TOKEN: a …": what follows such a name and a colon is taken out as a credential
        raise SecretError(f"{where} is no token: 16 to 1024 printable characters without spaces ({HOW})")
    return Secret(Proof.TOKEN, said.encode())


def _read(file: str) -> str:
    try:
        return given.start(file, 2048).decode("ascii", "replace")
    except OSError as error:
        raise SecretError(f"--token-file {file}: {error.strerror}") from None


def exposed(file: str) -> str:
    """That others may read the token, and what mends it; "": they may not.

    No refusal, and no word of a secret that is mounted: read-only, or with the folder ..data that Kubernetes' volumes have.  It
    is so by design, in a file system of the container's own, where nobody can change the mode.
    """
    try:
        mode = os.stat(file).st_mode if file != given.STDIN else 0
        if not stat.S_ISREG(mode) or not mode & 0o044 or os.statvfs(file).f_flag & os.ST_RDONLY:
            return ""
    except OSError:  # gone since
        return ""
    if os.path.islink(os.path.join(os.path.dirname(file), "..data")):
        return ""
    who = f"who may read it may be a node of this run (mode {stat.S_IMODE(mode):04o})"
    return f"--token-file {file}: {who}: chmod 600 {shlex.quote(file)}"


def by_munge(first: bool) -> Secret:
    """Where munged answers here: of node 0 a new key with its credential, of the others the promise to decode one."""
    found = _program("munge")
    if found is None:
        return Secret()
    key = secrets.token_hex(32) if first else ""
    try:  # the longest life that munged grants: pods and steps come late
        made = _call(found, f"--restrict-uid={os.geteuid()}", "--ttl=-1", said=key)
    except (OSError, subprocess.SubprocessError):
        return Secret()
    text = made.stdout.strip()
    if made.returncode or not re.fullmatch(r"MUNGE:[!-~]{1,2000}", text):
        return Secret()
    return Secret(Proof.MUNGE, key.encode(), text if first else "")


def of_munge(credential: str) -> Secret | str:
    """The key that node 0 sent; or why it is none of this user's."""
    found = _program("unmunge")
    if found is None:
        return "there is no unmunge"
    try:
        done = _call(found, "--numeric", "--keys=UID", said=credential)
    except (OSError, subprocess.SubprocessError):
        return "munged does not answer"
    if done.returncode in _CLOCKS:
        return f"the clocks of node 0 and this one are apart ({_CLOCKS[done.returncode]} credential of MUNGE): chronyc tracking"
    if done.returncode not in (0, _REPLAYED):
        return (done.stderr.strip() or "it cannot be decoded")[:200]
    told = re.fullmatch(r"UID:\s*([0-9]{1,10})\s+([0-9a-f]{64})\s*", done.stdout)
    if told is None or int(told[1]) != os.geteuid():
        return "it is another user's"
    return Secret(Proof.MUNGE, told[2].encode())


def _program(name: str) -> str | None:
    return next((path for one in _FOLDERS if os.access(path := f"{one}/{name}", os.X_OK)), None)


def _call(*command: str, said: str) -> subprocess.CompletedProcess[str]:
    clean = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
    return subprocess.run(
        command, input=said, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False, env=clean
    )
