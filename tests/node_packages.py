"""Programs from npm, as tests/npm/*/package-lock.json names them: installed anew, without running their scripts."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PROJECTS = Path(__file__).resolve().parent / "npm"
INSTALL_SECONDS = 180.0
REFUSED = "http://127.0.0.1:9"  # the discard port: refused at once


@contextmanager
def installed(project: str, folder: Path) -> Iterator[Path]:
    """A copy of tests/npm/PROJECT with its packages, which may be hundreds of megabytes and are removed afterwards.

    Skips with the reason where they cannot be had.
    """
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("npm is not installed")
    there = folder / project
    shutil.copytree(PROJECTS / project, there, ignore=shutil.ignore_patterns("node_modules"))
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", "--prefer-offline"]
    try:
        done = subprocess.run(command, cwd=there, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"the npm packages of {project} cannot be had: npm ci takes too long")
    if done.returncode:
        assert "EUSAGE" not in done.stderr, "package.json and package-lock.json do not fit together"
        words = " ".join(line.removeprefix("npm error ") for line in done.stderr.splitlines()[:2])
        pytest.skip(f"the npm packages of {project} cannot be had: {words}")
    try:
        yield there
    finally:
        shutil.rmtree(there / "node_modules")


def environment(home: Path, **more: str) -> dict[str, str]:
    """What such a program is started with: a home of its own, and no network but this machine."""
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), REFUSED)
    return {"PATH": os.environ["PATH"], "HOME": str(home), **proxies, "NO_PROXY": "127.0.0.1", **more}
