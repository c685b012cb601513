#!/bin/sh
# @NAME@ of Slurm, written by portagpu fleet scripts (portagpu @VERSION@).
# It calls no Slurm command and ends within 10 s. Slurm drains the node and requeues the job if it
# exits with anything but 0: it does so for a fault alone, never because the check could not run.
# The reason is in /run/portagpu/health.txt and in the system's log as "portagpu-health".
said=$(timeout -k 1 9 @COMMAND@ 2>&1)
code=$?
# a Python that cannot find portagpu exits with 1 too
[ "$code" -eq 1 ] && printf '%s\n' "$said" | grep -q '^portagpu health: ' && exit 1
[ "$code" -eq 0 ] || logger -t portagpu-health "@NAME@: the check did not run (exit code $code)" 2>/dev/null
exit 0
