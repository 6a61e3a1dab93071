"""What looks like a password, token or key, and `text` without it: one rule for whatever netdoctor prints, keeps or sends.

Three things give a credential away: the name that it stands beside, the mark that its maker puts in front of it, and that no
person would write it.  The marks are facts of the rules of gitleaks (its default configuration) and of the
makers' own pages; lengths are lower than theirs, for a line that was cut holds the beginning of a token.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from functools import cache, lru_cache
from itertools import pairwise
from typing import Final

GONE: Final = "<redacted>"

# Words in the name of what is secret.  PKEY, QKEY, RKEY, LKEY, MKEY and MR_KEY_SIZE are InfiniBand's and libfabric's, and none.
_SECRET: Final = (
    r"TOKEN(?!IZER)|SECRET|PASSW|PASSPHRASE|PASSCODE|CREDENTIAL|(?<![A-Z])PWD|(?<![A-Z])PSK"
    r"|(?<!_[PQRLM])(?<!\b[PQRLM])(?<!fifo[RL])KEY(?=S?(?![A-Z]))(?!S?\b\s*:|_SIZE)"
    r"|PRIVATE|COOKIE|AUTH(?!OR)|JWT|SIGNATURE"
)
# How a name ends that says something about a credential, and does not hold it.
_ABOUT: Final = r"(?<!file)(?<!path)(?<!type)(?<!_dir)(?<!size)(?<!count)(?<!timeout)(?<!method)(?<!mode)(?<!info)"
_NAME: Final = re.compile(_SECRET, re.IGNORECASE)

# Before a token: the maker's mark, and the fewest characters after it that are no word.
_MARKED: Final = (
    (r"gh[pousr]_|github_pat_", 12),  # GitHub
    (r"gl(?:pat|cbt|dt|ft|ffct|imt|agent|oas|ptt|rt|soat)-|GR1348941", 8),  # GitLab
    (r"nvapi-|nvcf-", 8),  # NVIDIA NGC
    (r"hf_|api_org_", 12),  # Hugging Face
    (r"AIza|ya29\.|GOCSPX-", 10),  # Google
    (r"npm_|pypi-|rubygems_", 12),  # registries of packages
    (r"dckr_(?:pat|oat)_", 8),  # Docker
    (r"xox[a-z](?:\.xox[a-z])?-|xapp-", 8),  # Slack
    (r"A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA|ABSK", 8),  # AWS
    (r"sk-(?:ant-|proj-|svcacct-|admin-|lf-|or-)?|pplx-|gsk_|xai-|r8_|csk-", 16),  # providers of models
    (r"(?:sk|rk|pk|whsec)_(?:test|live|prod)_|whsec_", 8),  # Stripe
    (r"hv[sbr]\.", 16),  # Vault
    (r"do[opr]_v1_|dapi|dp\.pt\.|dt0c01\.|lin_api_|ntn_|shp(?:at|ca|pa|ss)_|sntry[su]_|SG\.", 16),
    (r"glsa_|glc_|pul-|pnu_|pscale_(?:tkn|oauth|pw)_|tskey-|ops_eyJ|sha256~|rpa_|local-wandb-|wandb_v1_", 12),
    (r"eyJ[\w-]{6,}\.", 4),  # a JSON Web Token (RFC 7519): {"… in base64
    (r"AGE-SECRET-KEY-1", 8),
)
_TOKEN: Final = "|".join(rf"(?:{mark})[\w.~+/=-]{{{least},}}" for mark, least in _MARKED)
_QUOTED: Final = r"\"(?:[^\"\\\n]|\\.)*\"?|'[^'\n]*'?"
_BARE: Final = r"[^\s\"',;&<>(){}\[\]][^\s\"',;&<>)\]}]*"

_SHORT: Final = 256
_DIGIT, _CAPITAL, _SMALL = range(3)

_Pair = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]


# Beside a telling name these are no credentials: numbers, switches, references to a variable, addresses of C.
_PLAIN: Final = re.compile(
    r"(?i)[-+]?\d{1,6}|0x[0-9a-f]{1,16}|\(?nil\)?|%\S+|<redacted.*|true|false|yes|no|on|off|none|null|not set|unset|\$\{?\w+\}?"
)


def _word(found: re.Match[str]) -> str:
    return GONE if unwritten(found[0]) else found[0]


def _beside(found: re.Match[str]) -> str:
    value = found[3].strip("\"'")
    told = not value or _PLAIN.fullmatch(value) or _said_of_a_file(found)
    return found[0] if told else f"{found[1]}{found[2]}{GONE}"


# With these a sentence about a file goes on; behind each of them comes another word.
_GOES_ON: Final = re.compile(
    r"(?:an?|the|this|it|its|that|there|is|are|was|has|holds|does|did|can|cannot|could|not|no|nothing|none|neither|only|more|less"
    r"|larger|of|in|on|by|written|what|which|whose)(?: \S|n't )"
)


@cache
def _strerrors() -> tuple[str, ...]:
    """What the system says of a file; one word could be somebody's password."""
    return tuple(text for text in map(os.strerror, errno.errorcode) if " " in text)


def _said_of_a_file(found: re.Match[str]) -> bool:
    """``/run/token: Permission denied``: the name is a file's, and what follows the colon is said of it."""
    before, rest = found.string[: found.end(1)], found.string[found.start(3) :]
    if found[2].lstrip("\"'") != ": ":
        return False
    return rest.startswith(_strerrors()) or bool(_PATH.search(before[-_LONGEST_PATH:]) and _GOES_ON.match(rest))


_LONGEST_PATH: Final = 4096
_PATH: Final = re.compile(r"(?:^|[\s'\"(=])\.{0,2}/[^\s'\"=:]*\Z")


def _rule(pattern: str, replacement: str | Callable[[re.Match[str]], str] = GONE) -> _Pair:
    return re.compile(pattern, re.DOTALL), replacement


# Every part that repeats is bounded or stops at what the next one begins with: time grows with the text and no faster.
@cache
def _rules() -> tuple[_Pair, ...]:
    """Compiled for the first text that needs them: `--version` has none."""
    return (
        _rule(r"-----BEGIN[ A-Z0-9]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END[^-]*-----|\Z)"),
        # user:password@ of a URL, whose password may hold a "/"; registry:5000/image@sha256 is none.
        _rule(r"(?<=//)(?:[^/\s@:\"']{1,256}@|[^/\s@:\"']{0,256}:(?!\d{1,5}/)[^\s@\"']{0,256}@)(?=[\w\[])", f"{GONE}@"),
        _rule(
            rf"(?i)((?:(?:{_SECRET})[a-z0-9_.-]{{0,64}}|(?<![a-z])sig(?==)){_ABOUT})"
            rf"([\"']?\s{{0,8}}(?:=>?|:(?!:))\s{{0,8}}| set (?:by [a-z]+ )?to )({_QUOTED}|(?:(?:bearer|basic|token) )?{_BARE})",
            _beside,
        ),
        _rule(
            rf"(?i)((?<=\s)--?[a-z0-9-]*(?:token|secret|passw(?:or)?d|passphrase|credentials?|api-?key|access-?key|auth))"
            rf"(\s{{1,8}})(?!-)({_QUOTED}|{_BARE})",
            rf"\1\2{GONE}",
        ),
        _rule(r"(?i)\bbearer [a-z0-9._~+/=-]{8,}", f"Bearer {GONE}"),
        _rule(r"(?i)(hooks\.slack\.com/\w{1,16}/|webhook\.office\.com/)[\w+/@-]+", rf"\1{GONE}"),
        # The hash of a password (crypt(5), RFC 9106): $6$salt$hash, $2b$12$hash, $y$j9T$salt$hash.
        _rule(r"\$(?:[1567y]|2[abxy]|gy|argon2(?:id|[id]))\$[\w.,=+-]{1,64}\$[\w./,=+$-]{12,}"),
        _rule(rf"(?<![A-Za-z0-9])(?:{_TOKEN})"),
        _rule(r"[A-Za-z0-9+_=-]{24,}", _word),
    )


# A text that a rule changes has one of these, or a word drawn at random: most texts have none, and are not searched further.
_WORDS: Final = (
    "-----begin // bearer sig= x-amz hooks.slack webhook.office token secret passw passphrase passcode credential "
    "pwd psk key private cookie auth jwt signature gh gl gr1348941 nv hf_ api_org_ aiza ya29. gocspx- npm_ pypi- "
    "rubygems_ dckr_ xox xapp- a3t akia asia abia acca absk sk- pplx- gsk_ xai- r8_ csk- _test_ _live_ _prod_ whsec_ "
    "hv dapi dp.pt. dt0c01. do v1_ lin_api_ ntn_ shp sntry sg. pul- pnu_ pscale_ ops_eyj sha256~ rpa_ local-wandb- "
    "eyj $1$ $5$ $6$ $7$ $y$ $2a$ $2b$ $2x$ $2y$ $gy$ $argon2"
)
_HINTS: Final = tuple(_WORDS.split())
_RANDOM: Final = re.compile(r"[A-Za-z0-9+_=-]{24}")


def scrub(text: str) -> str:
    """`text` without what looks like a credential.  Idempotent."""
    return _scrubbed(text) if len(text) <= _SHORT else _without(text)


@lru_cache(maxsize=1 << 14)
def _scrubbed(text: str) -> str:
    """Reports of a fleet say the same thousands of times."""
    return _without(text)


def _without(text: str) -> str:
    lower = text.lower()
    if not any(map(lower.__contains__, _HINTS)) and not _RANDOM.search(text):
        return text
    for pattern, replacement in _rules():
        text = pattern.sub(replacement, text)
    return text


def secret_name(name: str) -> bool:
    """Whether a name sounds as if its value were a credential."""
    return _NAME.search(name) is not None


def unwritten(word: str) -> bool:
    """Whether a word of 24 characters or more was drawn at random: nobody would write it.

    In base64 two neighbours in three are of different kinds (capital, small, digit: 1 - 2·(26/64)² - (10/64)² = 0.65); in
    camel case, paths and mangled names of C++ it is one in three at most.  Hexadecimal digits of one case (commits, UUIDs,
    GIDs) are no credentials by themselves.
    """
    kinds = [_kind(one) for one in word if one.isalnum()]
    if len(kinds) < 20 or min(kinds.count(_SMALL), kinds.count(_CAPITAL)) < 4 or _DIGIT not in kinds:
        return False
    return sum(a != b for a, b in pairwise(kinds)) >= 0.42 * (len(kinds) - 1)


def _kind(one: str) -> int:
    return _DIGIT if one in "0123456789" else _CAPITAL if one.isupper() else _SMALL
