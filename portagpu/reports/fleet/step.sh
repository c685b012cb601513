#!/bin/sh
# One step of a fleet run: step.sh FOLDER COMMAND [ARGUMENT...]. Slurm keeps a copy of this file.
# FOLDER/ended says that the command came to its end, and in which job: without it a result may be
# an earlier job's, or half of one.
cd -- "$1" || exit 1
shift
rm -f -- ended ended.new result.json
# the command ends by itself on SIGTERM and keeps what it has; the last lines here still run
trap : TERM INT HUP
"$@"
code=$?
printf '%s %s\n' "$SLURM_JOB_ID" "$code" > ended.new && mv -f -- ended.new ended
exit "$code"
