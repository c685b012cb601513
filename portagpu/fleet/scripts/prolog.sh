#!/bin/sh
# @NAME@ of Slurm, written by portagpu fleet scripts (portagpu @VERSION@).
# It calls no Slurm command and ends within 10 s. Slurm drains the node and requeues the job if it
# exits with anything but 0: it does so for a fault alone, never because the check could not run.
# The reason is in /run/portagpu/health.txt and in the system's log as "portagpu-health".
timeout -k 1 9 @COMMAND@ >/dev/null 2>&1
code=$?
[ "$code" -eq 1 ] && exit 1
[ "$code" -eq 0 ] || logger -t portagpu-health "@NAME@: the check did not run (exit code $code)" 2>/dev/null
exit 0
