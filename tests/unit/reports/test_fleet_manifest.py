"""The whole Job that a fleet run on Kubernetes asks for, written here by hand.

What a pod may do is what the Pod Security Standards of Kubernetes call "restricted"
(kubernetes.io/docs/concepts/security/pod-security-standards), without a token and without
variables of services; docs/fleet.md says what each permission is for.
"""

from __future__ import annotations

from typing import Any

import pytest

from portagpu.reports.fleet.kubernetes import PodOptions, manifest
from portagpu.reports.fleet.request import FleetUsageError

GIVEN: dict[str, Any] = {
    "nodes": 70,
    "what": "bringup",
    "image": "registry.example/portagpu:1",
    "gres": "acme.com/gpu:8",
    "claim": "results",
}
HAS = {"cpu": "16", "memory": "64Gi", "ephemeral-storage": "4Gi", "acme.com/gpu": "8"}
LABELS = {"app.kubernetes.io/name": "portagpu-fleet"}
CONTAINER = {
    "name": "bringup",
    "image": "registry.example/portagpu:1",
    "command": ["sh", "-c", 'exec portagpu bringup --out "/results/$PORTAGPU_NODE"'],
    "env": [
        {"name": "PORTAGPU_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "HOME", "value": "/tmp"},  # noqa: S108 - a folder of the pod
        {"name": "USER", "value": "portagpu"},
    ],
    "resources": {"requests": HAS, "limits": HAS},
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    },
    "volumeMounts": [
        {"name": "results", "mountPath": "/results"},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the same
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the same
    ],
}
APART = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": LABELS}}
POD = {
    "restartPolicy": "Never",
    "automountServiceAccountToken": False,
    "enableServiceLinks": False,
    "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [APART]}},
    "securityContext": {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "runAsGroup": 10001,
        "fsGroup": 10001,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    "containers": [CONTAINER],
    "volumes": [
        {"name": "results", "persistentVolumeClaim": {"claimName": "results"}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "4Gi"}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
    ],
}
JOB = {
    "completionMode": "Indexed",
    "completions": 70,
    "parallelism": 64,
    "backoffLimitPerIndex": 0,
    "activeDeadlineSeconds": 3600,
    "template": {"metadata": {"labels": LABELS}, "spec": POD},
}


def test_the_job_of_a_run_with_defaults() -> None:
    assert manifest(PodOptions(**GIVEN)) == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "portagpu-fleet", "labels": LABELS},
        "spec": JOB,
    }


def test_no_pod_runs_on_a_node_that_has_a_result() -> None:
    spec = manifest(PodOptions(**GIVEN, done=["n1", "n2"], at_once=8, minutes=2))["spec"]
    assert (spec["completions"], spec["parallelism"]) == (68, 8)
    assert spec["activeDeadlineSeconds"] == 120
    (term,) = spec["template"]["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert term["matchFields"] == [
        {"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in ("n1", "n2")
    ]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"what": "collectives"}, "several nodes at once"),
        ({"name": "Fleet"}, "'Fleet' is not a name of a job"),
        ({"name": "f" * 53}, "is not a name of a job"),
        ({"gres": "gpu:8"}, "name the resource of the device plugin"),
        ({"gres": "acme.com/gpu:0"}, "name the resource of the device plugin"),
        ({"nodes": 1, "done": ["n1"]}, "1 node of 1 have a result: nothing is left to run"),
    ],
)
def test_what_cannot_be_a_job_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(FleetUsageError) as caught:
        manifest(PodOptions(**GIVEN | wrong))
    assert said in str(caught.value)
