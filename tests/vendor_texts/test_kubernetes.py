"""The manifests for Kubernetes: valid, no more allowed than they need, and nothing to start unset.

Schemas: those of Kubernetes itself, in the package kubernetes-validate. The plugin's configuration
is compared with what Node Problem Detector decodes, pkg/custompluginmonitor/types/config.go and
types.go and pkg/types/types.go at 6632ca6 (2026-08-22).
"""

from __future__ import annotations

import copy
import json
import re
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import ROOT
from tests.support.command_words import assert_taken

yaml = pytest.importorskip("yaml")

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = ROOT / "examples" / "kubernetes"
JOBS = ("bringup-nvidia.yaml", "bringup-amd.yaml")
DAEMONS = ("health-nvidia.yaml", "health-amd.yaml")
FILES = (*JOBS, *DAEMONS)
VERSIONS = ("1.33", "1.34", "1.35", "1.36", "1.37")
"""From the first whose Jobs have ``backoffLimitPerIndex`` for good."""
IMAGE = re.compile(
    r"(?:[a-z0-9.-]+(?::\d+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*(?::[\w.-]+)?(?:@sha256:\w+)?"
)
"""A name that a container runtime takes: github.com/distribution/reference."""

PLUGIN = {
    "plugin": str,
    "pluginConfig": {
        "invoke_interval": str,
        "timeout": str,
        "max_output_length": int,
        "concurrency": int,
        "enable_message_change_based_condition_update": bool,
        "skip_initial_status": bool,
    },
    "source": str,
    "conditions": [{"type": str, "status": str, "transition": str, "reason": str, "message": str}],
    "rules": [
        {
            "type": str,
            "condition": str,
            "reason": str,
            "path": str,
            "args": [str],
            "timeout": str,
            "invoke_interval": str,
        }
    ],
    "metricsReporting": bool,
}
"""The JSON keys and types of CustomPluginConfig. The detector passes over a key that it lacks."""


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text("utf-8")))


def workload(name: str) -> dict[str, Any]:
    (found,) = (each for each in documents(name) if each["kind"] in ("Job", "DaemonSet"))
    return found


def pod(name: str) -> dict[str, Any]:
    found: dict[str, Any] = workload(name)["spec"]["template"]["spec"]
    return found


def container(name: str) -> dict[str, Any]:
    (found,) = pod(name)["containers"]
    assert not pod(name).get("initContainers")
    return found


@pytest.fixture
def valid() -> Any:
    """Raises for a document that Kubernetes would refuse, or whose key it does not know."""
    validator = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate, which has the schemas, is not installed"
    )
    return lambda document, version: validator.validate(document, version, strict=True)


@pytest.mark.parametrize("name", FILES)
def test_a_document_with_a_wrong_key_or_type_is_refused(name: str, valid: Any) -> None:
    spec = copy.deepcopy(workload(name))
    for change in ({"restartPolice": "Never"}, {"containers": {}}, {"enableServiceLinks": "no"}):
        broken = copy.deepcopy(spec)
        broken["spec"]["template"]["spec"] |= change
        with pytest.raises(Exception, match=next(iter(change)) + "|is not"):
            valid(broken, VERSIONS[-1])


@pytest.mark.parametrize("name", FILES)
def test_a_pod_may_do_no_more_than_it_needs(name: str) -> None:
    spec, inside = pod(name), container(name)["securityContext"]
    assert inside == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"} & set(spec)
    resources = container(name)["resources"]
    assert {"cpu", "memory"} <= set(resources["limits"]) & set(resources["requests"])
    assert not [port for port in container(name).get("ports", []) if "hostPort" in port]


@pytest.mark.parametrize("name", JOBS)
def test_a_job_has_no_token_and_nothing_of_the_host(name: str) -> None:
    spec = pod(name)
    assert spec["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in spec
    kinds = {kind for volume in spec["volumes"] for kind in set(volume) - {"name"}}
    assert kinds == {"persistentVolumeClaim", "emptyDir"}
    assert all(
        "sizeLimit" in volume["emptyDir"] for volume in spec["volumes"] if "emptyDir" in volume
    )


def test_the_job_for_nvidia_is_not_root() -> None:
    assert pod("bringup-nvidia.yaml")["securityContext"]["runAsNonRoot"] is True
    assert pod("bringup-nvidia.yaml")["securityContext"]["runAsUser"] > 0


@pytest.mark.parametrize("name", DAEMONS)
def test_a_daemon_reads_the_host_s_journal_and_nothing_else(name: str) -> None:
    volumes = {each["name"]: each for each in pod(name)["volumes"]}
    host = {n: each["hostPath"]["path"] for n, each in volumes.items() if "hostPath" in each}
    assert host == {"journal": "/var/log/journal", "machine-id": "/etc/machine-id"}
    mounts = {each["name"]: each for each in container(name)["volumeMounts"]}
    assert set(mounts) == set(volumes)
    assert all(mounts[each].get("readOnly") for each in {*host, "config"})


@pytest.mark.parametrize("name", DAEMONS)
def test_a_daemon_has_the_role_of_kubernetes_alone(name: str) -> None:
    (binding,) = (each for each in documents(name) if each["kind"] == "ClusterRoleBinding")
    assert binding["roleRef"]["name"] == "system:node-problem-detector"
    (account,) = (each for each in documents(name) if each["kind"] == "ServiceAccount")
    (subject,) = binding["subjects"]
    assert subject["name"] == account["metadata"]["name"] == pod(name)["serviceAccountName"]
    assert subject["namespace"] == workload(name)["metadata"]["namespace"]
    assert not [each for each in documents(name) if each["kind"] in ("Role", "ClusterRole")]


@pytest.mark.parametrize(("nvidia", "amd"), [JOBS, DAEMONS])
def test_the_vendors_differ_where_they_must(nvidia: str, amd: str) -> None:
    first, second = flat(workload(nvidia)), flat(workload(amd))
    differ = {key for key in {*first, *second} if first.get(key) != second.get(key)}
    allowed = r"/(nvidia|amd)\.com/gpu$|/securityContext/(runAs|fsGroup)|/runtimeClassName$|/env/"
    assert differ
    assert [key for key in sorted(differ) if not re.search(allowed, key)] == []
    resource = {"nvidia.com/gpu", "amd.com/gpu"}
    for name, other in ((nvidia, "amd"), (amd, "nvidia")):
        limits = container(name)["resources"]["limits"]
        assert len(resource & set(limits)) == (name in JOBS), "a daemon takes no GPU from a job"
        assert f"{other}.com/gpu" not in json.dumps(workload(name))


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Each leaf of a document by its path."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        found: dict[str, Any] = {}
        for key, each in pairs:
            found |= flat(each, f"{path}/{key}")
        return found
    return {path: value}


@pytest.mark.parametrize("name", FILES)
def test_nothing_starts_before_the_image_is_set(name: str) -> None:
    assert IMAGE.fullmatch("registry.k8s.io/node-problem-detector/npd:v0.8.19")
    assert not IMAGE.fullmatch(container(name)["image"]), "a runtime would look for that image"
    head = (FOLDER / name).read_text("utf-8").partition("apiVersion")[0]
    assert "Set: image" in head


@pytest.mark.parametrize("name", JOBS)
def test_a_job_is_one_pod_a_node_and_no_failure_stops_another(name: str) -> None:
    spec = workload(name)["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"]
    assert spec["backoffLimitPerIndex"] == 0
    assert pod(name)["restartPolicy"] == "Never"
    rules = pod(name)["affinity"]["podAntiAffinity"]
    (rule,) = rules["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    labels = workload(name)["spec"]["template"]["metadata"]["labels"]
    assert rule["labelSelector"]["matchLabels"].items() <= labels.items()
    resources = container(name)["resources"]
    assert resources["limits"] == resources["requests"]


@pytest.mark.parametrize("name", JOBS)
def test_a_job_s_command_is_one_of_ours_and_counts_its_gpus(name: str) -> None:
    found = container(name)
    words = [*found["command"], *found["args"]]
    assert_taken(words)
    gpus = next(
        found["resources"]["limits"][key] for key in found["resources"]["limits"] if "gpu" in key
    )
    assert words[words.index("--expect-devices") + 1] == gpus
    folder = words[words.index("--out") + 1]
    (mount,) = (each for each in found["volumeMounts"] if folder.startswith(each["mountPath"]))
    assert mount["name"] == "results"
    named = {each["name"] for each in found["env"]}
    assert set(re.findall(r"\$\((\w+)\)", folder)) <= named


def configuration() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "npd-health.json").read_text("utf-8"))
    return found


def wrong(value: Any, shape: Any, path: str = "") -> Iterator[str]:
    """The keys and types of ``value`` that ``shape`` does not have."""
    if isinstance(shape, dict) and isinstance(value, dict):
        for key, each in value.items():
            if key in shape:
                yield from wrong(each, shape[key], f"{path}/{key}")
            else:
                yield f"{path}/{key}"
    elif isinstance(shape, list) and isinstance(value, list):
        for number, each in enumerate(value):
            yield from wrong(each, shape[0], f"{path}/{number}")
    elif isinstance(shape, dict | list) or type(value) is not shape:
        yield path


def seconds(duration: str) -> float:
    """A duration as Go's time.ParseDuration reads it; a ValueError for another text."""
    units = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
    if not re.fullmatch(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h))+", duration):
        raise ValueError(duration)
    return sum(float(n) * units[u] for n, u in re.findall(r"([\d.]+)(ms|s|m|h)", duration))


def test_the_detector_reads_every_key_of_the_configuration() -> None:
    assert list(wrong(configuration(), PLUGIN)) == []
    broken = configuration() | {"rule": [], "source": 1}
    broken["rules"][0]["args"] = "health"
    assert list(wrong(broken, PLUGIN)) == ["/source", "/rules/0/args", "/rule"]


def test_the_detector_takes_the_configuration() -> None:
    """What CustomPluginConfig.Validate and ApplyConfiguration of the detector refuse."""
    found = configuration()
    assert found["plugin"] == "custom"
    overall = seconds(found["pluginConfig"]["timeout"])
    assert seconds(found["pluginConfig"]["invoke_interval"]) > overall
    conditions = {each["type"] for each in found["conditions"]}
    for rule in found["rules"]:
        assert rule["type"] in ("permanent", "temporary")
        assert seconds(rule["timeout"]) <= overall
        assert rule["condition"] in conditions
        assert rule["path"].startswith("/")


def test_the_plugin_ends_before_the_detector_ends_it() -> None:
    found = configuration()
    (rule,) = found["rules"]
    limit = float(rule["args"][rule["args"].index("--limit") + 1])
    assert limit < seconds(rule["timeout"]), "the detector's message would say only that it waited"
    assert found["pluginConfig"]["max_output_length"] == 80
    assert_taken([rule["path"], *rule["args"]])


@pytest.mark.parametrize("name", DAEMONS)
def test_a_daemon_has_that_configuration(name: str) -> None:
    (config,) = (each for each in documents(name) if each["kind"] == "ConfigMap")
    assert json.loads(config["data"]["npd-health.json"]) == configuration()
    found = container(name)
    (mount,) = (each for each in found["volumeMounts"] if each["name"] == "config")
    (option,) = (each for each in found["args"] if "custom-plugin-monitor" in each)
    assert option == f"--config.custom-plugin-monitor={mount['mountPath']}/npd-health.json"


def test_no_image_is_invented() -> None:
    """A Dockerfile names images of Python and of the detector, or one that the user gives."""
    named = set()
    for path in sorted(FOLDER.glob("Dockerfile*")):
        text = path.read_text("utf-8")
        assert "This project has not built it" in text
        given = dict(re.findall(r"^ARG (\w+)=?(\S*)$", text, re.MULTILINE))
        for image in re.findall(r"^FROM (\S+)", text, re.MULTILINE):
            name = re.fullmatch(r"\$\{(\w+)\}", image)
            named.add(given[name[1]] if name else image)
    assert named == {
        "",
        "python:3.12-slim-bookworm",
        "registry.k8s.io/node-problem-detector/node-problem-detector:v0.8.19",
    }


def test_the_commands_that_build_an_image_name_what_is_there() -> None:
    texts = [path.read_text("utf-8") for path in FOLDER.glob("Dockerfile*")]
    texts.append((ROOT / "docs/fleet.md").read_text("utf-8"))
    found = [
        line
        for text in texts
        for line in re.findall(r"^(?:#   )?(docker build .*)", text, re.MULTILINE)
    ]
    assert len(found) == 3
    for line in found:
        words = shlex.split(line)
        assert words[-1] in (".", "examples/kubernetes")
        if "--file" in words:
            assert (FOLDER / words[words.index("--file") + 1]).is_file()


def test_all_commands_of_the_page_run_in_one_folder() -> None:
    """A `cd` in one block would break the paths of the next."""
    page = (ROOT / "docs/fleet.md").read_text("utf-8")
    commands = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert commands
    assert not [block for block in commands if re.search(r"^cd ", block, re.MULTILINE)]
    for path in re.findall(r"examples/kubernetes/[\w.-]+\.yaml", "".join(commands)):
        assert (ROOT / path).is_file()
