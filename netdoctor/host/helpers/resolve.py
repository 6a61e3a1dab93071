"""Helper program: what a name resolves to, as the C library answers (getaddrinfo(3)); it may hang, hence a child.

Parameters: ``name``.  Answers {"addresses": [IP, …]} in getaddrinfo's order without doubles, or
{"error": "EAI_NONAME", "detail": text} for a name that does not resolve.
"""

from __future__ import annotations

import socket


def answer(parameters: dict[str, str]) -> object:
    try:
        found = socket.getaddrinfo(parameters["name"], None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        name = next((n for n in dir(socket) if n.startswith("EAI_") and getattr(socket, n) == error.errno), str(error.errno))
        return {"error": name, "detail": error.strerror or ""}
    except UnicodeError as error:  # a label of no or more than 63 characters
        return {"error": "EAI_NONAME", "detail": str(error)}
    return {"addresses": list(dict.fromkeys(str(one[4][0]) for one in found if one[0] in (socket.AF_INET, socket.AF_INET6)))}
