#!/usr/bin/python
# Copyright The netdoctor authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import absolute_import, division, print_function

__metaclass__ = type

DOCUMENTATION = r"""
module: preflight_info
short_description: Look at a GPU node with netdoctor
version_added: 0.1.0
description:
  - Runs C(netdoctor preflight) on the host and returns its report.
  - Changes nothing on the host, and runs no all-reduce unless it is asked to.
  - A host that is unhealthy, or that netdoctor cannot run on, does not make this module fail. It is a result, see RV(ignore:status).
author:
  - The netdoctor authors (@netdoctor)
options:
  pyz:
    description:
      - Path, on the host, of C(netdoctor.pyz). It is started by O(interpreter) in isolated mode.
    type: path
  command:
    description:
      - How an installed netdoctor is called. Used where O(pyz) is not given.
    type: list
    elements: str
    default: [netdoctor]
  interpreter:
    description:
      - A Python 3.10 or later for O(pyz). Where it is not given, the newest that is found on the host is taken.
    type: path
  profile:
    description:
      - What netdoctor must be able to tell.
    type: str
    choices: [audit, prolog, default, gate, strict]
    default: audit
  only:
    description:
      - Ids of the checks to run. All of them where the list is empty.
    type: list
    elements: str
    default: []
  config:
    description:
      - Path, on the host, of a configuration of netdoctor.
    type: path
  python:
    description:
      - The Python of the jobs, whose torch and NCCL are looked at.
    type: path
  allreduce:
    description:
      - Whether a short all-reduce is run on the host.
    type: bool
    default: false
  timeout:
    description:
      - Seconds after which netdoctor is ended.
    type: int
    default: 120
attributes:
  check_mode:
    description: Can run in check mode without changing anything.
    support: full
  diff_mode:
    description: Returns what changed in diff mode.
    support: none
    details: Nothing is changed.
"""

EXAMPLES = r"""
- name: Look at the node with an installed netdoctor
  netdoctor.cluster.preflight_info:
  register: node

- name: Look with a file that was copied, and a Python that is not on the PATH
  netdoctor.cluster.preflight_info:
    pyz: /opt/netdoctor/netdoctor.pyz
    interpreter: /opt/python3.12/bin/python3
    timeout: 60
  register: node

- name: Stop where the node is unhealthy
  ansible.builtin.assert:
    that: node.status != 'unhealthy'
    fail_msg: "{{ node.text }}"
"""

RETURN = r"""
status:
  description:
    - The verdict, or V(no_report) where there is none.
  returned: always
  type: str
  choices: [healthy, unhealthy, inconclusive, no_report]
  sample: unhealthy
text:
  description: The verdict in one line, or why there is no report.
  returned: always
  type: str
  sample: "unhealthy: 1 critical: rdma.dev_infiniband"
report:
  description: The report, with schema C(netdoctor.report/1). Empty where there is none.
  returned: always
  type: dict
  sample: {schema: netdoctor.report/1, verdict: {status: unhealthy, exit_code: 3}}
interpreter:
  description: The Python that netdoctor was started with. Empty where O(command) was used, or none was found.
  returned: always
  type: str
  sample: /usr/bin/python3.11
rc:
  description: The exit code of netdoctor, or -1 where it was not started.
  returned: always
  type: int
  sample: 3
"""

import json
import os

from ansible.module_utils.basic import AnsibleModule

MAX_BYTES = 5000000
NEWEST = 20  # minor versions of Python 3 that are looked for by name
OLDEST = 10
FOLDERS = ["/usr/bin", "/usr/local/bin", "/bin", "/opt/bin"]
OLD_ENOUGH = "import sys; raise SystemExit(sys.version_info < (3, %d))" % OLDEST


class NoReport(Exception):
    """Why there is no report, and the exit code."""

    def __init__(self, text, rc=-1):
        super(NoReport, self).__init__(text)
        self.rc = rc


def find_interpreter(module, wanted):
    """A Python that can run netdoctor; raises NoReport with what was tried."""
    if wanted:
        candidates = [wanted]
    else:
        names = ["python3.%d" % minor for minor in range(NEWEST, OLDEST - 1, -1)] + ["python3"]
        found = [module.get_bin_path(name, opt_dirs=FOLDERS) for name in names]
        candidates = [path for path in found if path]
    tried = []
    for path in candidates:
        rc = 127
        if os.path.exists(path):
            rc = module.run_command(["timeout", "-k", "2", "20", path, "-I", "-c", OLD_ENOUGH], handle_exceptions=False)[0]
        if rc == 0:
            return path
        tried.append("%s (%s)" % (path, "older than 3.10" if rc == 1 else "is not there" if rc == 127 else "does not start"))
    raise NoReport("no Python of 3.10 or later: tried %s; name one with interpreter" % (", ".join(tried) or "python3 and its kin"))


def arguments(params):
    argv = ["preflight", "--format", "json", "--quiet", "--profile", params["profile"]]
    if not params["allreduce"]:
        argv.append("--no-allreduce")
    if params["only"]:
        argv += ["--only", ",".join(params["only"])]
    for name in ("config", "python"):
        if params[name]:
            argv += ["--" + name, params[name]]
    return argv


def look(module, start):
    """(report, exit code); raises NoReport."""
    seconds = module.params["timeout"]
    argv = ["timeout", "-k", "5", str(seconds)] + start + arguments(module.params)
    try:
        rc, out, err = module.run_command(argv, handle_exceptions=False, cwd="/")
    except (IOError, OSError) as error:
        raise NoReport("netdoctor could not be started: %s" % error)
    last = (err.strip().splitlines() or [""])[-1][:300]
    if rc in (124, 137):
        raise NoReport("netdoctor gave no answer within %d s" % seconds, rc)
    if rc in (126, 127):
        raise NoReport("netdoctor could not be started: %s" % (last or start[0]), rc)
    if rc not in (0, 3, 4):
        raise NoReport("netdoctor ended with %d: %s" % (rc, last), rc)
    if len(out) > MAX_BYTES:
        raise NoReport("its report is larger than %d bytes" % MAX_BYTES, rc)
    try:
        report = json.loads(out)
    except ValueError as error:
        raise NoReport("it gave no JSON: %s" % error, rc)
    verdict = report.get("verdict") if isinstance(report, dict) else None
    if not isinstance(verdict, dict) or verdict.get("status") not in ("healthy", "unhealthy", "inconclusive"):
        raise NoReport("it gave JSON that is no report", rc)
    return report, rc


def main():
    module = AnsibleModule(
        argument_spec=dict(
            pyz=dict(type="path"),
            command=dict(type="list", elements="str", default=["netdoctor"]),
            interpreter=dict(type="path"),
            profile=dict(type="str", choices=["audit", "prolog", "default", "gate", "strict"], default="audit"),
            only=dict(type="list", elements="str", default=[]),
            config=dict(type="path"),
            python=dict(type="path"),
            allreduce=dict(type="bool", default=False),
            timeout=dict(type="int", default=120),
        ),
        supports_check_mode=True,
    )
    interpreter = ""
    try:
        module.get_bin_path("timeout", required=True)
        if module.params["pyz"]:
            interpreter = find_interpreter(module, module.params["interpreter"])
            start = [interpreter, "-I", module.params["pyz"]]
        else:
            start = module.params["command"]
        report, rc = look(module, start)
    except NoReport as problem:
        text, report, rc, status = str(problem), {}, problem.rc, "no_report"
    else:
        status, text = report["verdict"]["status"], str(report["verdict"].get("text", ""))
    module.exit_json(changed=False, status=status, text=text, report=report, interpreter=interpreter, rc=rc)


if __name__ == "__main__":
    main()
