#!/bin/sh
# node-problem-detector plugin over the status file of watch.sh: 0 good, 1 a problem, 2 cannot tell; 80 characters at most.
file=${NETDOCTOR_STATUS:-/run/netdoctor/status}
unknown() { printf '%.80s\n' "$1"; exit 2; }
[ -f "$file" ] && [ -r "$file" ] || unknown "netdoctor has not looked yet"
{ read -r code when && read -r message; } <"$file" || unknown "the status of netdoctor is not whole"
case $when in '' | 0* | *[!0-9]* | ????????????*) unknown "the status of netdoctor is not whole" ;; esac
age=$(($(date +%s) - when))
[ "$age" -ge 0 ] && [ "$age" -le "${1:-1800}" ] || unknown "the status of netdoctor is stale"
printf '%.80s\n' "$message"
case "$code $message" in "0 healthy"* | "1 unhealthy"*) exit "$code" ;; *) exit 2 ;; esac
