"""Keeps one taint and one label of this node in step with netdoctor's status file.  Standard library only.

Only the taint with our key is ever added or taken away.  A status that is missing, stale or "cannot tell" changes nothing.
The node is read first and its resourceVersion sent back, so a change by somebody else in between is a conflict (409), and the
next round tries again.
"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from typing import Any

KEY = "netdoctor/unhealthy"
LABEL = "netdoctor/health"
STALE = 1800  # seconds
PERIOD = 60
MEDIA = "application/merge-patch+json"


def main() -> None:
    while True:
        try:
            state = status(os.environ.get("NETDOCTOR_STATUS", "/run/netdoctor/status"), time.time())
            if state is not None:
                apply(os.environ["NODE_NAME"], state)
        except (OSError, ValueError) as error:  # URLError is an OSError
            print(f"netdoctor: taint: {error}", file=sys.stderr, flush=True)
        if os.environ.get("PERIOD") == "once":
            return
        time.sleep(PERIOD)


def status(path: str, now: float) -> bool | None:
    """True: healthy, False: unhealthy, None: leave things as they are."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            code, when = stream.readline(200).split()
    except (OSError, ValueError):
        return None
    if not when.isdecimal() or not 0 <= now - int(when) <= STALE:
        return None
    return {"0": True, "1": False}.get(code)


def wanted(node: dict[str, Any], healthy: bool) -> dict[str, Any] | None:
    """The merge patch that brings the node in step; None where it is.  Every other taint stays as it is."""
    have = node.get("spec", {}).get("taints") or []
    taints = [taint for taint in have if taint.get("key") != KEY]
    if not healthy:
        taints.append({"key": KEY, "value": "true", "effect": "NoSchedule"})
    label = "healthy" if healthy else "unhealthy"
    same_taint = any(taint.get("key") == KEY for taint in have) != healthy
    if same_taint and (node["metadata"].get("labels") or {}).get(LABEL) == label:
        return None
    patch: dict[str, Any] = {"metadata": {"resourceVersion": node["metadata"]["resourceVersion"], "labels": {LABEL: label}}}
    if not same_taint:
        patch["spec"] = {"taints": taints}
    return patch


def apply(name: str, healthy: bool) -> None:
    patch = wanted(call("GET", name), healthy)
    if patch is None:
        return
    try:
        call("PATCH", name, patch)
    except urllib.error.HTTPError as error:
        if error.code != 409:
            raise
        return
    print(f"netdoctor: node {name} is {'healthy' if healthy else 'unhealthy'}", flush=True)


def call(method: str, name: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    host = f"[{host}]" if ":" in host else host
    api = os.environ.get("NETDOCTOR_API") or f"https://{host}:{port}"
    files = os.environ.get("NETDOCTOR_API_FILES", "/var/run/netdoctor-api")
    with open(files + "/token", encoding="ascii") as stream:  # the kubelet renews it
        token = stream.read().strip()
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": "Bearer " + token, "Accept": "application/json", "Content-Type": MEDIA}
    request = urllib.request.Request(f"{api}/api/v1/nodes/{name}", data, headers, method=method)
    context = ssl.create_default_context(cafile=files + "/ca.crt") if api.startswith("https:") else None
    with urllib.request.urlopen(request, timeout=20, context=context) as answer:
        node: dict[str, Any] = json.load(answer)
    return node


if __name__ == "__main__":
    main()
