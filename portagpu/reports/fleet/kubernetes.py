"""The manifest of a fleet run on Kubernetes: an Indexed Job, one pod a node.

Nothing is asked of a cluster. docs/fleet.md says what each permission is for.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.environment import NODE
from portagpu.base.units import count
from portagpu.reports.bundles.document import WHOLE
from portagpu.reports.condensed.nodes import NodeRun, read_node
from portagpu.reports.fleet.request import FleetUsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?")
"""A label of a DNS name (RFC 1123), with room for what Kubernetes adds to it."""
_GRES: Final = re.compile(r"([a-z0-9.-]{1,253}/[A-Za-z0-9._-]{1,63}):([1-9]\d{0,3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOptions:
    """What runs in each pod.

    :param nodes: The number of nodes, each of which has one pod.
    :param what: The verb of each node, with ``arguments``.
    :param image: Has portagpu and the vendor's torch.
    :param gres: The resource of the device plugin and how many of it a node has, "NAME/gpu:8".
    :param claim: The claim of a volume that all nodes can write, for the results.
    :param minutes: After this time the job ends.
    :param at_once: How many nodes run at the same time.
    :param name: Of the job.
    :param done: Nodes that have a result: no pod runs there.
    """

    nodes: int
    what: str
    image: str
    gres: str
    claim: str
    arguments: Sequence[str] = ()
    minutes: int = 60
    at_once: int = 64
    name: str = "portagpu-fleet"
    done: Sequence[str] = ()


def nodes_with_results(folder: Path) -> list[str]:
    """The nodes of which an earlier job left a whole result in the folder of the claim."""
    done = []
    for path in sorted(folder.glob(f"*/{WHOLE}")):
        found = read_node(path)
        if isinstance(found, NodeRun) and not found.account.interrupted:
            done.append(path.parent.name)
    return done


def manifest(options: PodOptions) -> dict[str, Any]:
    """The job as Kubernetes 1.33 and later take it. Raises FleetUsageError."""
    if options.what == "collectives":
        raise FleetUsageError("collectives run on several nodes at once, which needs Slurm")
    if not _NAME.fullmatch(options.name):
        raise FleetUsageError(f"{options.name!r} is not a name of a job: small letters and digits")
    gres = _GRES.fullmatch(options.gres)
    if gres is None:
        raise FleetUsageError(
            "name the resource of the device plugin and how many of it a node has, such as "
            "--gres VENDOR.com/gpu:8"
        )
    words = ["portagpu", options.what, *options.arguments]
    left = options.nodes - len(options.done)
    if left < 1:
        raise FleetUsageError(
            f"{count(len(options.done), 'node')} of {options.nodes} have a result: nothing is left "
            "to run"
        )
    labels = {"app.kubernetes.io/name": options.name}
    has = {"cpu": "16", "memory": "64Gi", "ephemeral-storage": "4Gi", gres[1]: gres[2]}
    container = {
        "name": options.what,
        "image": options.image,
        # no shell writes the node's name: it comes from the variable alone
        "command": ["sh", "-c", f'exec {shlex.join(words)} --out "/results/${NODE}"'],
        "env": [
            # the results name the node, and not the pod
            {"name": NODE, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            # caches: the root file system is read-only; torch asks for the name of the user
            {"name": "HOME", "value": "/tmp"},  # noqa: S108 - a folder of the pod
            {"name": "USER", "value": "portagpu"},
        ],
        "resources": {"requests": has, "limits": has},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "results", "mountPath": "/results"},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the same
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - ranks exchange data there
        ],
    }
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "topologyKey": "kubernetes.io/hostname",
                        "labelSelector": {"matchLabels": labels},
                    }
                ]
            },
            **_elsewhere(options.done),
        },
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "runAsGroup": 10001,
            "fsGroup": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": "results", "persistentVolumeClaim": {"claimName": options.claim}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "4Gi"}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
        ],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": options.name, "labels": labels},
        "spec": {
            "completionMode": "Indexed",
            "completions": left,
            "parallelism": min(left, options.at_once),
            # a node that fails is not tried again and stops no other
            "backoffLimitPerIndex": 0,
            "activeDeadlineSeconds": 60 * options.minutes,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _elsewhere(nodes: Sequence[str]) -> dict[str, Any]:
    """The affinity to all nodes but these; a requirement of a field takes one name."""
    if not nodes:
        return {}
    others = [{"key": "metadata.name", "operator": "NotIn", "values": [each]} for each in nodes]
    terms = [{"matchFields": others}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"nodeAffinity": required}
