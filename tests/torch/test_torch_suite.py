"""torch's own distributed tests: what passes on Gloo passes on ours. See programs/manifest.py and its page."""

import importlib.util

import pytest
from jobs import ROOT

spec = importlib.util.spec_from_file_location("manifest", ROOT / "tests/torch/programs/manifest.py")
manifest = importlib.util.module_from_spec(spec)
spec.loader.exec_module(manifest)

STORED = manifest.stored()["results"]
PASSED = [name for name, found in STORED["gloo"].items() if found["state"] == "passed"]
SHORT = [name for name in PASSED if STORED["gloo"][name]["ranks"] == 3 and STORED["gloo"][name]["seconds"] < 0.5]
QUICK = SHORT[:: max(1, len(SHORT) // 25)]


@pytest.mark.long
def test_a_part():
    assert len(QUICK) >= 25
    results = manifest.run("collectives", QUICK, 3, quiet=True)
    assert {name: found["why"] for name, found in results.items() if found["state"] != "passed"} == {}
    assert list(results) == QUICK


def test_the_manifest_has_all_tests_of_this_torch():
    everything = set(manifest.names())
    assert len(everything) > 250
    assert {backend: set(found) for backend, found in STORED.items()} == dict.fromkeys(manifest.BACKENDS, everything)


def test_nothing_is_missing_in_the_manifest():
    assert len(PASSED) > 220
    assert manifest.missing(STORED) == []


def test_no_test_is_skipped_for_the_name_of_the_backend():
    reasons = {found["why"] for results in STORED.values() for found in results.values() if found["state"] == "skipped"}
    assert reasons
    for why in reasons:
        assert not any(word in why.lower() for word in ("backend", "nccl", "gloo", "ucc", "gpu", "cuda")), why


def test_the_page_is_of_the_manifest():
    assert manifest.PAGE.read_text() == manifest.page(manifest.stored())


@pytest.mark.slow
def test_what_passes_on_gloo_passes_on_ours():
    results = {backend: manifest.run_all(backend, manifest.names()) for backend in manifest.BACKENDS}
    assert sum(found["state"] == "passed" for found in results["gloo"].values()) > 220
    assert {name: results["collectives"].get(name) for name in manifest.missing(results)} == {}
