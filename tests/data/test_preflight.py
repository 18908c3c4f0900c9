"""The preflight: bounded in time whatever a site does, only an HTTP answer is one, and the cause is named."""

from __future__ import annotations

import base64
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crope.data.preflight import preflight, site
from tests.data.hub_server import Site


def test_preflight_is_bounded_where_names_do_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    def hanging(*_: Any, **__: Any) -> None:
        time.sleep(30)
        raise OSError("resolved at last")

    monkeypatch.setattr("socket.getaddrinfo", hanging)
    urls = [f"https://host{n}.invalid" for n in range(5)]
    start = time.monotonic()
    assert preflight(urls, timeout_s=0.4) == dict.fromkeys(urls, "no answer in 0.4 s")
    assert time.monotonic() - start < 1.5


def test_preflight_names_the_cause(served: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(host: str, *_: Any, **__: Any) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    answers = preflight([served.url, "http://127.0.0.1:9"])
    assert list(answers) == ["http://127.0.0.1:9"] and "refused" in answers["http://127.0.0.1:9"]
    monkeypatch.setattr("socket.getaddrinfo", unknown)
    assert preflight(["https://hub.invalid"]) == {"https://hub.invalid": "Name or service not known"}


@pytest.mark.parametrize("url", ["hub.example", "http://", "http://127.0.0.1:notaport"])
def test_an_endpoint_that_is_no_url(url: str) -> None:
    assert list(preflight([url])) == [url]


def test_a_proxy_counts_as_the_host(served: Site, silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", served.url)
    refused = preflight(["https://hub.invalid"])
    assert refused == {"https://hub.invalid": "proxy 127.0.0.1: Tunnel connection failed: 403 Forbidden by policy"}
    monkeypatch.setenv("https_proxy", f"http://name:secret@{silent}")
    start = time.monotonic()
    slow = preflight(["https://hub.invalid"], timeout_s=0.4)["https://hub.invalid"]
    assert time.monotonic() - start < 1.5
    assert "secret" not in slow
    monkeypatch.setenv("http_proxy", served.url)  # no CONNECT for plain http
    assert preflight(["http://hub.invalid"]) == {}
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert preflight([served.url]) == {}


@pytest.fixture
def tls(served: Site, tmp_path: Path) -> Iterator[int]:
    """The port of a site with a certificate that nobody trusts."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command, to make a certificate")
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=hub.invalid -keyout key.pem -out cert.pem"
    subprocess.run(make.split(), cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    site = Site()
    site.socket = context.wrap_socket(site.socket, server_side=True)
    yield site.server_address[1]
    site.close()


def test_a_certificate_is_not_the_preflights_business(tls: int) -> None:
    """Which certificates are trusted is set in the environment of the client that comes after."""
    assert preflight([f"https://127.0.0.1:{tls}"]) == {}


def test_https_is_asked_through_the_proxys_tunnel(served: Site, tls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    served.tunnel = ("127.0.0.1", tls)
    monkeypatch.setenv("https_proxy", served.url.replace("//", "//name:se%40cret@"))
    assert preflight(["https://hub.invalid"]) == {}
    assert served.logins == ["Basic " + base64.b64encode(b"name:se@cret").decode()]


def test_a_host_that_accepts_and_stays_silent_does_not_answer(served: Site, silent: str) -> None:
    urls = [f"http://{silent}", f"https://{silent}", served.url]
    expected = "no answer in 0.4 s"
    assert preflight(urls, timeout_s=0.4) == {f"http://{silent}": expected, f"https://{silent}": expected}


def test_a_host_behind_a_tunnel_that_stays_silent(served: Site, silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    served.tunnel = ("127.0.0.1", int(silent.rpartition(":")[2]))
    monkeypatch.setenv("https_proxy", served.url)
    assert preflight(["https://hub.invalid"], timeout_s=0.4) == {"https://hub.invalid": "no answer in 0.4 s"}


@pytest.mark.parametrize("status", [401, 404, 500, 503])
def test_any_status_is_an_answer(served: Site, status: int) -> None:
    served.faults["/"] = status
    assert preflight([served.url]) == {}


def test_something_else_than_http() -> None:
    def speak(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
            connection.recv(1000)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=speak, args=(server,), daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert preflight([url]) == {url: "no HTTP answer (SSH-2.0-OpenSSH_9.6)"}


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"])
def test_offline_is_respected(served: Site, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    assert preflight([served.url]) == {served.url: f"{name} is set"}
    assert served.requests == []


def test_credentials_of_a_url_are_not_shown() -> None:
    assert site("https://name:secret@mirror.example:8443/path") == "mirror.example:8443"
