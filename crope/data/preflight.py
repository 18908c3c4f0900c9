"""Whether a site answers, said within seconds: the hub's client by itself retries for 23 s to minutes."""

from __future__ import annotations

import base64
import http.client
import os
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Sequence
from urllib.parse import SplitResult, unquote, urlsplit

PREFLIGHT_S = 3.0


def preflight(urls: Sequence[str], timeout_s: float | None = None) -> dict[str, str]:
    """Causes by URL, for those whose host gave no HTTP answer; all tried at once, through the environment's proxies.

    Any status counts as an answer; a connection does not, since a host may accept it and stay silent. The result comes
    within `timeout_s` (PREFLIGHT_S), even where name resolution hangs: that call has no timeout of its own, so it runs
    in a daemon thread that is left behind.
    """
    timeout_s = PREFLIGHT_S if timeout_s is None else timeout_s
    if offline := _offline():
        return dict.fromkeys(urls, offline)
    causes: dict[str, str | None] = {}

    def probe(url: str) -> None:
        try:
            _ask(url, timeout_s)
            causes[url] = None
        except TimeoutError:
            pass  # said below, as for the threads that are left behind
        except (OSError, ValueError) as error:
            causes[url] = one_line(error)
        except http.client.HTTPException as error:
            causes[url] = f"no HTTP answer ({one_line(error)})"

    threads = [threading.Thread(target=probe, args=(url,), daemon=True) for url in dict.fromkeys(urls)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    answers = {url: causes.get(url, f"no answer in {timeout_s:g} s") for url in urls}
    return {url: cause for url, cause in answers.items() if cause is not None}


def site(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2] or url


def one_line(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())[:200]


def _offline() -> str | None:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        if os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE"):
            return f"{name} is set"
    return None


def _ask(url: str, timeout_s: float) -> None:
    """One HEAD request. Through the proxy that the environment names, with the CONNECT that it may refuse."""
    target = urlsplit(url)
    host, port = target.hostname or "", target.port or (443 if target.scheme == "https" else 80)
    if not host or target.scheme not in ("http", "https"):
        raise ValueError(f"{url!r} is not a URL")
    headers = {"Host": site(url), "User-Agent": "crope"}
    proxies = {} if urllib.request.proxy_bypass(host) else urllib.request.getproxies()
    proxy = proxies.get(target.scheme) or proxies.get("all")
    if proxy is None:
        _head(http.client.HTTPConnection(host, port, timeout=timeout_s), target, target.path or "/", headers)
        return
    via = urlsplit(proxy if "//" in proxy else f"http://{proxy}")
    connection = http.client.HTTPConnection(via.hostname or "", via.port or 80, timeout=timeout_s)
    login = {}
    if via.username:
        secret = base64.b64encode(f"{unquote(via.username)}:{unquote(via.password or '')}".encode()).decode()
        login = {"Proxy-Authorization": f"Basic {secret}"}
    if target.scheme == "https":
        connection.set_tunnel(host, port, login)
    try:
        if via.scheme == "http":
            connection.connect()
        else:  # TLS or SOCKS up to the proxy: that it is there has to do
            socket.create_connection((connection.host, connection.port), timeout_s).close()
            return
    except TimeoutError:
        raise
    except OSError as error:
        raise OSError(f"proxy {via.hostname}: {one_line(error)}") from None
    if target.scheme == "https":
        _head(connection, target, target.path or "/", headers)
    else:
        _head(connection, target, f"http://{site(url)}{target.path or '/'}", headers | login)


def _head(connection: http.client.HTTPConnection, target: SplitResult, path: str, headers: dict[str, str]) -> None:
    try:
        if connection.sock is None:
            connection.connect()
        if target.scheme == "https":
            # Unverified: nothing secret is sent and nothing received is used. The client that comes after verifies,
            # with certificates that its environment may name and this module need not know.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            connection.sock = context.wrap_socket(connection.sock, server_hostname=target.hostname)
        connection.request("HEAD", path, headers=headers)
        connection.getresponse()
    finally:
        connection.close()
