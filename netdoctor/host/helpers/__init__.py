"""Helper programs: each asks one native library or kernel interface and answers JSON.

A helper is one self-contained file (standard library plus at most one library, syntax of Python 3.10, no import of netdoctor)
with one function::

    def answer(parameters: dict[str, str]) -> JSON

`netdoctor.host.children` runs it in a killable child of its own, ``python -I -S -B -c``: no site module, the site-packages that
netdoctor itself lives in are on ``sys.path``, the environment is the job's without variables that make libraries write
files, stdout and stderr lead nowhere.  ``{"unavailable": KIND, "detail": TEXT}`` (kinds: `netdoctor.model.KINDS`) is the
answer "not to be had", as a whole or for a single field.  A parameter ``path`` names a file to load: with euid 0 it is
refused unless root alone can change it.  A parameter ``user`` makes the child become that user first.
"""
