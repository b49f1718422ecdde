"""How the server listens and whom it answers. How models are loaded is in registry.py."""

from __future__ import annotations

from dataclasses import dataclass

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class ServerSettings:
    """What `localinfer serve` was asked for; every default is what it does if nothing is said.

    host, port       where it listens; port 0 takes a free one
    api_keys         any of them opens every path but /health; empty: no key is asked for
    cors_origins     origins of web pages that may ask, beside those on this machine; "*" is every origin
    allowed_hosts    names by which it may be asked without a key, beside localhost, `host` and IP addresses
    max_body         bytes that the body of a request may have
    parallel         answers of one model that are computed at the same time
    queue            requests of one model that may wait for their turn; more get a 429
    drain_seconds    how long running answers may go on after SIGTERM
    keep_alive       seconds that an idle connection stays open: agents think for longer than a few
    idle_unload      seconds after which a model that nobody asks is unloaded; 0: never
    log_file         where the lines about requests go instead of to standard error
    ping_seconds     silence after which a stream gets a comment: clients give up after 30 s of it
    verbose          whether requests that ask nothing of a model (health, metrics) have lines too
    """

    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    tls_certificate: str = ""
    tls_key: str = ""
    max_body: int = 32 * MEBIBYTE
    parallel: int = 8
    queue: int = 64
    drain_seconds: float = 30.0
    keep_alive: int = 75
    idle_unload: float = 0.0
    log_file: str = ""
    verbose: bool = False
    ping_seconds: float = 10.0
