"""Every test has a store and settings of its own, and no network; the real models are pulled once, outside."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from localinfer.errors import LocalInferError
from localinfer.hub.catalog import CATALOG
from localinfer.hub.pull import file_sha256, pull

# Why tests may be skipped where data or the network is missing; see .ci/run.
EXPECTED_SKIPS = re.compile(
    r"the published \w+ are not beside the checkout|the real model .* is not here: .*|no source can be reached: .*|"
    r"lm-eval is not installed|playwright is not installed|there is no chromium here|"
    r"npm is not installed|the npm packages of [\w-]+ cannot be had: .*|jsonschema [\d.]+ cannot be downloaded: .*"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--only-expected-skips", action="store_true", help="fail if a test is skipped for another reason")


def pytest_configure(config: pytest.Config) -> None:
    # Everybody tests the same examples; --hypothesis-profile=explore looks for others.
    settings.register_profile("repeatable", derandomize=True)
    settings.register_profile("explore")
    if not config.getoption("--hypothesis-profile"):
        settings.load_profile("repeatable")
    # A background job of a shell ignores Ctrl-C, and so would every program that a test starts and interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "network: uses the package index; skips with the reason if it cannot")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Says why tests were skipped; with --only-expected-skips, any other reason fails the run."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not session.config.getoption("only_expected_skips"):
        return
    reasons = Counter(_reason(report) for report in reporter.stats.get("skipped", []))
    reporter.write_line(f"\n{reasons.total()} tests skipped")
    for reason, count in sorted(reasons.items()):
        expected = EXPECTED_SKIPS.fullmatch(reason) is not None
        reporter.write_line(f"  {count} {'as expected' if expected else 'UNEXPECTED'}: {reason}")
        if not expected and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    assert isinstance(report.longrepr, tuple)
    return str(report.longrepr[2]).removeprefix("Skipped: ").partition("\n")[0]


@pytest.fixture(autouse=True, scope="session")
def _away_from_the_sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Processes that tests start look in the current folder for packages: the repository's `localinfer` is not the
    installed package and lacks its kernels and models.
    """
    with contextlib.chdir(tmp_path_factory.mktemp("elsewhere")):
        yield


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALINFER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("FORCE_COLOR", "NO_COLOR", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _no_network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections leave this machine in no test, nor in the processes it starts, unless it is marked `network`."""
    if request.node.get_closest_marker("network"):
        return
    # The discard port: refused at once.
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for name in [n for n in os.environ if n in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL")]:
        monkeypatch.delenv(name)
    for name in [n for n in os.environ if n.lower() in ("http_proxy", "https_proxy", "all_proxy")]:
        monkeypatch.delenv(name)
    connect = socket.socket.connect

    def local_only(self: socket.socket, address: object) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            assert isinstance(address, tuple)
            assert address[0] in ("127.0.0.1", "::1", "localhost"), f"a test connects to {address}"
        connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", local_only)


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The Hugging Face cache of a test that talks to a hub of its own (tests/hub_server.py), and does not wait long."""
    from huggingface_hub import constants

    from localinfer.hub import transfer

    folder = tmp_path / "huggingface" / "hub"
    monkeypatch.setenv("HF_HOME", str(folder.parent))
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    for name, value in (("HF_HUB_OFFLINE", False), ("HF_HUB_CACHE", str(folder)), ("HF_HUB_DOWNLOAD_TIMEOUT", 1)):
        monkeypatch.setattr(constants, name, value)  # which the library read when it was imported
    monkeypatch.setattr(transfer, "FIRST_WAIT", 0.01)
    return folder


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1: a small real chat model."""
    return real_model("smollm2:135m")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M, Q4_K_M: a small real base model with a vocabulary of 262,144."""
    return real_model("gemma3:270m")


def real_model(name: str) -> Path:
    """The catalog's file: from the folder LOCALINFER_TEST_MODELS, else pulled once into `cache_folder`."""
    entry = CATALOG[name]
    if folder := os.environ.get("LOCALINFER_TEST_MODELS"):
        for path in sorted(Path(folder).rglob("*.gguf")):
            if path.stat().st_size == entry.size and file_sha256(path) == entry.sha256:
                return path
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALINFER_HOME", str(cache_folder()))
        try:
            return pull(name).path
        except LocalInferError as error:
            pytest.skip(f"the real model {name} is not here: {error.message}")


def cache_folder() -> Path:
    """Where the real models are kept: in the user's cache, or where that cannot be written, among temporary files."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "localinfer-tests"
    if folder.is_absolute():
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    return Path(tempfile.gettempdir()) / f"localinfer-tests-{os.getuid()}"


@pytest.fixture(scope="module")
def one_torch_thread() -> Iterator[None]:
    """For modules of small products, which threads only slow down."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
