"""`localinfer doctor`"""

from typing import Any

from localinfer.cli.options import Json
from localinfer.cli.output import emit, emit_json, size


def command(json: Json = False) -> None:
    """Say what this machine offers.

    Its processor and memory, each backend and why it is or isn't usable, where models are kept, and versions.
    """
    found = examine()
    if json:
        emit_json(found)
        return
    memory = found["memory"]
    emit(f"processor   {found['processor']}\n")
    emit(f"memory      {size(memory['total'])}, {size(memory['available'])} available\n")
    for name, backend in found["backends"].items():
        emit(f"backend     {name}: {'usable' if backend['usable'] else 'NOT usable'}: {backend['reason']}\n")
        for key, value in backend["details"].items():
            emit(f"              {key}: {value}\n")
    emit(f"models      {found['store']['models']} ({size(found['store']['free'])} free)\n")
    emit(f"settings    {found['store']['config']}\n")
    emit("versions    " + ", ".join(f"{name} {version}" for name, version in found["versions"].items()) + "\n")


def examine() -> dict[str, Any]:
    """What `doctor --json` prints: processor, memory, backends, store, versions. Sizes are bytes."""
    import shutil

    from localinfer.bench.hardware import cpu_name, memory_bytes
    from localinfer.engine.memory import free_memory
    from localinfer.hub.folders import config_folder, models_folder
    from localinfer.kernels import BACKENDS, backend

    backends = {name: vars(backend(name).availability()) for name in BACKENDS}
    models = models_folder()
    existing = next(folder for folder in (models, *models.parents) if folder.exists())
    return {
        "processor": cpu_name(),
        "memory": {"total": memory_bytes(), "available": free_memory()},
        "backends": backends,
        "store": {
            "models": str(models),
            "config": str(config_folder()),
            "free": shutil.disk_usage(existing).free,
        },
        "versions": _versions(),
    }


def _versions() -> dict[str, str]:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from localinfer import __version__

    found = {"localinfer": __version__, "python": platform.python_version(), "system": platform.platform()}
    for package in ("typer", "rich", "jinja2", "numpy", "torch"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
