"""Where the server listens: addresses, ports and TLS files, and what is wrong with them in words."""

from __future__ import annotations

import errno
import ipaddress
import socket
import ssl

from localinfer.errors import LocalInferError
from localinfer.server.settings import ServerSettings

_EVERYWHERE = {"": "all addresses", "0.0.0.0": "all addresses", "::": "all addresses"}


def listen(settings: ServerSettings) -> list[socket.socket]:
    """Sockets bound to host and port, before anything is loaded: what is wrong with them shows at once.

    LocalInferError if they cannot be bound, or if they can be reached from other machines and no key is asked for.
    """
    addresses = _resolve(settings.host, settings.port)
    if not settings.api_keys and not all(_is_loopback(address[0]) for _, address in addresses):
        raise LocalInferError(
            f"{_EVERYWHERE.get(settings.host, settings.host)} can be reached from other machines, and there is no API "
            "key: anybody could use this server",
            "set a key in the environment variable LOCALINFER_API_KEY or with --api-key-file, "
            "or leave out --host to serve this machine alone",
        )
    sockets: list[socket.socket] = []
    try:
        for family, address in addresses:
            # One name may have several addresses; with port 0 all take the port that the first one got.
            port = sockets[0].getsockname()[1] if sockets else address[1]
            sockets.append(_bind(family, (address[0], port, *address[2:])))
    except BaseException:
        for opened in sockets:
            opened.close()
        raise
    return sockets


def tls_context(settings: ServerSettings) -> ssl.SSLContext | None:
    """What certificate and key make, None without them. LocalInferError names the file that is wrong."""
    certificate, key = settings.tls_certificate, settings.tls_key
    if not certificate and not key:
        return None
    if not certificate:
        raise LocalInferError("there is a TLS key and no certificate", "give both: --tls-cert and --tls-key")
    for path in filter(None, (certificate, key)):
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise LocalInferError(f"the TLS file {path} cannot be read: {error.strerror}") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key or None, password=_refuse_password)
    except ssl.SSLError as error:
        where = f"{certificate} and {key}" if key else certificate
        if error.reason == "KEY_VALUES_MISMATCH":
            raise LocalInferError(f"the TLS key {key} does not belong to the certificate {certificate}") from error
        raise LocalInferError(
            f"{where} hold no certificate and private key in PEM form ({error.reason or error})",
            "they begin with -----BEGIN CERTIFICATE----- and -----BEGIN PRIVATE KEY-----",
        ) from error
    return context


def url(settings: ServerSettings, sockets: list[socket.socket]) -> str:
    """Where clients on this machine find the server."""
    host, port = sockets[0].getsockname()[:2]
    if ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
        host = "localhost"
    scheme = "https" if settings.tls_certificate else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise LocalInferError(
            f"the host {host!r} is not known: {getattr(error, 'strerror', error)}",
            "give an address of this machine: 127.0.0.1, or 0.0.0.0 for all of them",
        ) from error
    return [(family, address) for family, _, _, _, address in found]  # type: ignore[misc]


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _bind(family: socket.AddressFamily, address: tuple[str, int]) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A server that was killed leaves connections behind that would keep the port for a minute.
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.bind(address)
        opened.listen(1)  # two servers can be bound to one port; it is listening that fails
    except OSError as error:
        opened.close()
        raise _explained(error, *address[:2]) from error
    return opened


def _explained(error: OSError, host: str, port: int) -> LocalInferError:
    if error.errno == errno.EADDRINUSE:
        return LocalInferError(
            f"port {port} of {host} is in use: another program listens there, perhaps another localinfer serve",
            f"stop that program, or take another port: --port {port + 1 if port < 65535 else 8080} "
            "(--port 0 takes a free one)",
        )
    if error.errno == errno.EACCES:
        return LocalInferError(
            f"port {port} of {host} may not be used by you: {error.strerror}", "take a port above 1023: --port 8080"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return LocalInferError(
            f"{host} is no address of this machine", "use 127.0.0.1 for this machine alone, 0.0.0.0 for all networks"
        )
    return LocalInferError(f"cannot listen on {host}, port {port}: {error.strerror}")


def _refuse_password() -> str:
    """OpenSSL would ask for it on the terminal."""
    raise LocalInferError(
        "the TLS key is encrypted with a password, which a server cannot type", "openssl pkey -in KEY -out PLAIN_KEY"
    )
