# The border between Slurm and netdoctor, sourced by prolog.sh, epilog.sh and health_check.sh.  $1: which of them.
#
# A Prolog that exits other than 0 drains its node, and one that does not end holds up every job of the node.  So:
#   - only "unhealthy" (3) may stop a job.  0, 1 (a defect of netdoctor), 2 (its configuration), 4 (inconclusive),
#     124 and 137 (out of time), 126 and 127 (no interpreter), and whatever else: exit 0;
#   - nothing is waited for without end, not even a process that cannot be killed because its file system hangs.
# Keep this folder on a local disk, owned by root and writable by nobody else.

what=$1
where=${0%/*}
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH

PYTHON=/usr/bin/python3
NETDOCTOR="/usr/bin/python3 -I /opt/netdoctor/netdoctor.pyz"
DEADLINE=8
ACTION=drain
ON_UNKNOWN=report
RESUME=no
CONFIG=
SCONTROL=scontrol
STATE=/var/lib/netdoctor-slurm
NODE=
if [ -r "$where/netdoctor.conf" ]; then . "$where/netdoctor.conf"; fi
case $DEADLINE in
  '' | *[!0-9]*)
    echo "netdoctor: $where/netdoctor.conf: DEADLINE=$DEADLINE: must be whole seconds: the node is left as it is"
    exit 0
    ;;
esac
export NETDOCTOR DEADLINE ACTION ON_UNKNOWN RESUME CONFIG SCONTROL STATE NODE
if [ -n "${SLURM_CONF:-}" ]; then export SLURM_CONF; fi

# What is said goes through a file in memory: a process that is left behind must not hold slurmd's pipe.
run=/run/netdoctor-slurm
out=$run/$what.$$
mkdir -p -m 0700 "$run" 2>/dev/null && : >"$out" || out=/dev/null

timeout -k 2 "$((DEADLINE + 6))" "$PYTHON" -I "$where/netdoctor_slurm.py" "$what" >"$out" 2>&1 </dev/null &
job=$!
late=
trap 'late=yes' USR1
(
  trap 'kill "$nap" 2>/dev/null; exit 0' TERM
  sleep "$((DEADLINE + 9))" &
  nap=$!
  wait "$nap"
  kill -USR1 "$$"
) >/dev/null 2>&1 </dev/null &
dog=$!
wait "$job" 2>/dev/null # a trapped signal ends this wait, whatever state the job is in
code=$?
kill "$dog" 2>/dev/null

if [ "$out" != /dev/null ]; then
  cat "$out"
  rm -f "$out"
fi
if [ -n "$late" ]; then
  echo "netdoctor: no answer within $((DEADLINE + 9)) s, and it could not be ended: the node is left as it is"
  code=124
fi
case $code in
  0 | 3) ;;
  *) echo "netdoctor: exit $code says nothing about the node: it is left as it is" ;;
esac
if [ "$what" = prolog ] && [ "$code" = 3 ]; then
  trap - EXIT
  exit 1
fi
exit 0 # the health check too: Slurm may repeat one that exits otherwise, and it has drained the node already
