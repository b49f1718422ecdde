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
    emit(f"features    {', '.join(found['features']) or 'unknown'}\n")
    emit(f"cores       {found['cores']['words']}\n")
    emit(f"memory      {size(memory['total'])}, {size(memory['available'])} available\n")
    for name, backend in found["backends"].items():
        emit(f"backend     {name}: {'usable' if backend['usable'] else 'NOT usable'}: {backend['reason']}\n")
        for key, value in backend["details"].items():
            emit(f"              {key}: {value}\n")
    emit(f"models      {found['store']['models']} ({size(found['store']['free'])} free)\n")
    emit(f"settings    {found['store']['config']}\n")
    emit("versions    " + ", ".join(f"{name} {version}" for name, version in found["versions"].items()) + "\n")


def examine() -> dict[str, Any]:
    """What `doctor --json` prints: processor, features, cores, memory, backends, store, versions. Sizes are bytes."""
    import shutil

    from localinfer.bench.hardware import cpu_features, cpu_name, memory_bytes
    from localinfer.engine.memory import free_memory
    from localinfer.hub.folders import config_folder, models_folder
    from localinfer.kernels import BACKENDS, backend

    backends = {name: vars(backend(name).availability()) for name in BACKENDS}
    models = models_folder()
    existing = next(folder for folder in (models, *models.parents) if folder.exists())
    return {
        "processor": cpu_name(),
        "features": cpu_features(),
        "cores": _cores(),
        "memory": {"total": memory_bytes(), "available": free_memory()},
        "backends": backends,
        "store": {
            "models": str(models),
            "config": str(config_folder()),
            "free": shutil.disk_usage(existing).free,
        },
        "versions": _versions(),
    }


def _cores() -> dict[str, Any]:
    """The logical processors that this process may use, one per physical core that is fast enough to take part."""
    from localinfer.kernels.cpu.topology import allowed_cpus, performance_cores, physical_cores

    allowed = allowed_cpus()
    physical = physical_cores(allowed)
    used = performance_cores(physical)
    words = f"{', '.join(map(str, used))}: {len(used)} of {len(allowed)} logical processors"
    if len(physical) < len(allowed):
        words += f"; {len(allowed) - len(physical)} share a core with one of them"
    if len(used) < len(physical):
        words += f"; {len(physical) - len(used)} are slower cores"
    return {"used": used, "allowed": allowed, "words": words}


def _versions() -> dict[str, str]:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from localinfer import __version__

    found = {"localinfer": __version__, "python": platform.python_version(), "system": platform.platform()}
    for package in ("typer", "rich", "jinja2", "numpy", "huggingface_hub", "torch"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
