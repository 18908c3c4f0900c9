"""Whether a site answers, said within seconds: the hub's client by itself retries for 23 s to minutes."""

from __future__ import annotations

import base64
import http.client
import os
import socket
import threading
import time
import urllib.request
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

PREFLIGHT_S = 3.0


def preflight(urls: Sequence[str], timeout_s: float = PREFLIGHT_S) -> dict[str, str]:
    """Causes by URL, for those whose host (or the proxy for it) gave no connection; all tried at once.

    The answer comes within `timeout_s`, even where name resolution hangs: that call has no timeout of its own, so it
    runs in a daemon thread that is left behind.
    """
    if offline := _offline():
        return dict.fromkeys(urls, offline)
    causes: dict[str, str | None] = {}

    def probe(url: str) -> None:
        try:
            _connect(url, timeout_s)
            causes[url] = None
        except (OSError, ValueError, http.client.HTTPException) as error:
            causes[url] = one_line(error)

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


def _connect(url: str, timeout_s: float) -> None:
    """One TCP connection; to the proxy where the environment names one, with the CONNECT that it may refuse."""
    target = urlsplit(url)
    host, port = target.hostname or "", target.port or (443 if target.scheme == "https" else 80)
    if not host:
        raise ValueError(f"{url!r} is not a URL")
    proxies = {} if urllib.request.proxy_bypass(host) else urllib.request.getproxies()
    proxy = proxies.get(target.scheme) or proxies.get("all")
    if proxy is None:
        socket.create_connection((host, port), timeout_s).close()
        return
    via = urlsplit(proxy if "//" in proxy else f"http://{proxy}")
    connection = http.client.HTTPConnection(via.hostname or "", via.port or 80, timeout=timeout_s)
    if via.scheme == "http" and target.scheme == "https":
        login = f"{unquote(via.username)}:{unquote(via.password or '')}" if via.username else ""
        headers = {"Proxy-Authorization": "Basic " + base64.b64encode(login.encode()).decode()} if login else {}
        connection.set_tunnel(host, port, headers)
    try:
        connection.connect()
    except OSError as error:
        raise OSError(f"proxy {via.hostname}: {one_line(error)}") from None
    finally:
        connection.close()
