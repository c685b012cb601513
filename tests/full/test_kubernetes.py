"""The manifests for Kubernetes: valid, no more allowed than they need, and nothing to start unset.

Schemas: those of Kubernetes itself, in the package kubernetes-validate. The plugin's configuration
is compared with what Node Problem Detector decodes, pkg/custompluginmonitor/types/config.go and
types.go and pkg/types/types.go at 6632ca6 (2026-08-22)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.vendor_texts.test_kubernetes import FILES, VERSIONS, documents
from tests.vendor_texts.test_kubernetes import valid as valid


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", FILES)
def test_every_document_is_valid(name: str, version: str, valid: Any) -> None:
    found = documents(name)
    assert found
    for document in found:
        valid(document, version)
