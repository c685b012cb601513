#!/bin/sh
# HealthCheckProgram of Slurm, written by portagpu fleet scripts (portagpu @VERSION@).
# It drains the node for a fault, unless the node is drained or down already. It resumes the node
# only if it drained it itself: the reason is kept in a file, and Slurm must still have the same.
# What could not be judged changes nothing. Slurm ends it after 60 s and ignores its exit code.
# slurmd gives it no PATH
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/slurm/bin
node=${SLURMD_NODENAME:-$(hostname -s)}
folder=/run/portagpu
own=$folder/drained-$node

# exit codes of the gate: 0 well, 1 a fault, 3 not everything was judged
said=$(timeout -k 2 52 @COMMAND@ 2>/dev/null)
code=$?
[ "$code" -eq 0 ] || [ "$code" -eq 1 ] || exit 0
# a Python that cannot find portagpu exits with 1 too
printf '%s\n' "$said" | grep -q '^portagpu health: ' || exit 0

# a line for each partition of the node; the reason stands last
now=$(timeout -k 1 5 sinfo -a -h -N -n "$node" -o '%T|%E' | head -n 1)
[ -n "$now" ] || exit 0
state=${now%%|*} reason=${now#*|}

if [ "$code" -eq 1 ]; then
    case $state in
    drain* | drng* | down* | fail* | inval* | unk*) exit 0 ;;
    esac
    # one line without quotes, as Slurm gives it back
    new=$(printf '%s' "$said" | tr -s '\n\t ' '   ' | tr -cd 'A-Za-z0-9 .,:;/_=()%+@-' | cut -c 1-180)
    new=${new%% }
    mkdir -p -- "$folder" && printf '%s\n' "$new" > "$own.new" && mv -f -- "$own.new" "$own" || exit 0
    timeout -k 1 5 scontrol update NodeName="$node" State=DRAIN Reason="$new" || rm -f -- "$own"
elif [ -f "$own" ] && [ "$reason" = "$(cat "$own")" ]; then
    case $state in
    drained | draining) timeout -k 1 5 scontrol update NodeName="$node" State=RESUME && rm -f -- "$own" ;;
    esac
fi
exit 0
