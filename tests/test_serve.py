"""`localinfer serve`: what it refuses and in which words, and what clients find at its address."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localinfer.cli.main import execute
from localinfer.errors import LocalInferError
from localinfer.server.listen import listen, tls_context, url
from localinfer.server.settings import ServerSettings
from scripted_model import write_scripted_model
from serving import Serving

TLS = Path(__file__).resolve().parent / "data" / "tls"
ANSWER = "Hello, wide 🌍!"
KEY = {"authorization": "Bearer secret"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    return write_scripted_model(folder / "one.gguf"), write_scripted_model(folder / "two.gguf", context=2048)


@pytest.fixture(scope="module")
def server(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Two models behind a key, with a small limit for bodies."""
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text("# of the team\nsecret\n\n  other\n")
    arguments = (*map(str, models), "--api-key-file", str(keys), "--max-body", "1", "--alias", "gpt-4o=two")
    with Serving(*arguments, environment={"LOCALINFER_API_KEY": "from-environment"}) as serving:
        yield serving


# --- what clients find -------------------------------------------------------------------------------------------


def test_keys_of_file_and_environment(server: Serving) -> None:
    assert server.ask("/v1/models")[0] == 401
    assert server.ask("/health")[0] == 200
    for key in ("secret", "other", "from-environment"):
        assert server.ask("/v1/models", headers={"x-api-key": key})[0] == 200
    assert server.ask("/v1/models", headers={"x-api-key": "# of the team"})[0] == 401


def test_models_are_found_by_file_name_path_and_alias(server: Serving, models: tuple[Path, Path]) -> None:
    _, listed = server.ask("/v1/models", headers=KEY)
    assert [model["id"] for model in listed["data"]] == ["one", "two"]
    assert [model["context_length"] for model in listed["data"]] == [4096, 2048]
    for name, found in [("two", "two"), ("gpt-4o", "two"), (str(models[0]), "one"), (None, "one")]:
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
        status, answer = server.ask("/v1/chat/completions", body | ({"model": name} if name else {}), KEY)
        assert status == 200, answer
        assert answer["model"] == found
        assert answer["choices"][0]["message"]["content"] == ANSWER
    status, answer = server.ask("/v1/chat/completions", body | {"model": "three"}, KEY)
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
    assert "one, two" in answer["error"]["message"]


def test_a_chunked_body_over_the_limit_is_answered(server: Serving) -> None:
    with server.socket() as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-api-key: secret\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for _ in range(20):
            connection.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        # It never says that it is over, and gets its answer all the same.
        with connection.makefile("rb") as answer:
            assert answer.readline().startswith(b"HTTP/1.1 413 ")
            rest = answer.read()
    assert b"request_too_large" in rest
    assert b"connection: close" in rest


def test_a_body_that_says_it_is_too_long_is_answered_unread(server: Serving) -> None:
    with server.socket() as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-api-key: secret\r\ncontent-length: 9999999999\r\n\r\n"
        )
        with connection.makefile("rb") as answer:
            assert answer.readline().startswith(b"HTTP/1.1 413 ")


def test_garbage_disturbs_nobody(server: Serving) -> None:
    for data in (
        b"\x16\x03\x01\x02\x00",
        b"GET\r\n\r\n",
        b"\0" * 1000,
        b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
    ):
        with server.socket() as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1000)
    with server.socket() as connection:  # half a request, and away
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nx-api-key: secret\r\ncontent-length: 100\r\n\r\n{")
    assert server.ask("/health")[0] == 200


def test_pages_elsewhere_may_not_ask(server: Serving) -> None:
    status, answer = server.ask("/v1/models", headers=KEY | {"origin": "https://evil.example"})
    assert (status, answer["error"]["code"]) == (403, "origin_not_allowed")
    assert server.ask("/v1/models", headers=KEY | {"origin": "http://localhost:3000"})[0] == 200
    own = f"http://127.0.0.1:{server.port}"
    assert server.ask("/v1/models", headers=KEY | {"origin": own})[0] == 200


def test_tls(models: tuple[Path, Path]) -> None:
    certificate, key = TLS / "certificate.pem", TLS / "key.pem"
    with Serving(str(models[0]), "--tls-cert", str(certificate), "--tls-key", str(key)) as server:
        assert server.url.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=certificate)
        with (
            server.socket() as plain,
            context.wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            with connection.makefile("rb") as answer:
                assert answer.readline().startswith(b"HTTP/1.1 200 ")
        assert server.stop() == 0


# --- what it refuses ---------------------------------------------------------------------------------------------


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert execute(["serve", *arguments]) in (1, 2)
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    return said


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCALINFER_API_KEY", raising=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_other_machines_need_a_key(models: tuple[Path, Path], host: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, str(models[0]), "--host", host)
    assert "all addresses can be reached from other machines, and there is no API key" in said
    assert "LOCALINFER_API_KEY" in said.partition("hint: ")[2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "no.such.host.invalid"], "the host 'no.such.host.invalid' is not known"),
        (["--host", "192.0.2.1", "--api-key", "k"], "192.0.2.1 is no address of this machine"),
        (["--port", "70000"], "Invalid value for '--port'"),
        (["--parallel", "0"], "Invalid value for '--parallel'"),
        (["--api-key", ""], "an API key is empty, or has characters other than visible ASCII"),
        (["--api-key", "with space"], "an API key is empty, or has"),
        (["--api-key", "schlüssel"], "an API key is empty, or has"),
        (["--api-key-file", "no-such-file"], "the file of API keys no-such-file cannot be read"),
        (["--tls-cert", "no-such-file"], "the TLS file no-such-file cannot be read"),
        (["--tls-key", str(TLS / "key.pem")], "there is a TLS key and no certificate"),
        (
            ["--tls-cert", str(TLS / "certificate.pem"), "--tls-key", str(TLS / "other_key.pem")],
            "does not belong to the certificate",
        ),
        (
            ["--tls-cert", str(TLS / "certificate.pem"), "--tls-key", str(TLS / "encrypted_key.pem")],
            "is encrypted with a password",
        ),
        (["--tls-cert", str(TLS / "certificate.pem")], "hold no certificate and private key in PEM form"),
        (["--tls-cert", __file__, "--tls-key", __file__], "hold no certificate and private key in PEM form"),
        (["--alias", "nonsense"], "--alias nonsense should be OTHER=NAME"),
        (["--alias", "a=three"], "three is not served"),
        (["--alias", "one=one"], "one is the name of a model already"),
        (["--context", "1"], "context is 1"),
        (["--context", "2000000000"], "MiB are free"),
        (["--backend", "abacus"], "abacus"),
        (["--template", "no-such-file"], "there is no file no-such-file"),
        (["--draft", "no-such-model"], "there is no model no-such-model"),
        (["--speculation", "draft"], "there is no draft model"),
        (["other-model", "--draft", "x"], "--draft goes with one model"),
        (["--log-file", "/no/such/folder/log"], "the log file /no/such/folder/log cannot be written"),
    ],
)
def test_refusals(
    models: tuple[Path, Path], arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(capsys, str(models[0]), "--port", "0", *arguments)


def test_an_empty_file_of_keys_is_no_reason_to_ask_for_none(
    models: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "keys").write_text("# none yet\n\n")
    assert "has no key in it" in refused(capsys, str(models[0]), "--api-key-file", str(tmp_path / "keys"))


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no model nonsense" in refused(capsys, "nonsense")
    assert "localinfer serve smollm2:135m --yes" in refused(capsys)


# --- addresses ---------------------------------------------------------------------------------------------------


def test_the_address_that_is_said() -> None:
    for host, shown in [("127.0.0.1", "http://127.0.0.1:"), ("localhost", "http://"), ("0.0.0.0", "http://localhost:")]:
        settings = ServerSettings(host=host, port=0, api_keys=("k",))
        sockets = listen(settings)
        try:
            assert url(settings, sockets).startswith(shown)
            assert len({opened.getsockname()[1] for opened in sockets}) == 1
        finally:
            for opened in sockets:
                opened.close()


def test_all_of_this_machine_needs_no_key() -> None:
    for host in ("127.0.0.1", "127.1.2.3", "localhost"):
        for opened in listen(ServerSettings(host=host, port=0)):
            opened.close()


def test_no_tls_without_files() -> None:
    assert tls_context(ServerSettings()) is None
    with pytest.raises(LocalInferError, match="cannot be read"):
        tls_context(ServerSettings(tls_certificate=str(TLS / "certificate.pem"), tls_key="/no/such/key"))
