"""Bounds on the hub's client: how long it waits for data, how often it tries again, and where it may write.

By itself it waits 10 s for some answers and without limit for others (the listing of a repository), tries again five
times and more, obeys a site that asks it to wait for minutes, and names files of its cache as the site says.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

from crope.data.preflight import one_line, site

ATTEMPTS = 3
# Of answers to HEAD. The client makes names in its cache of them, unchecked, and of the revisions that it asks for.
NAMING_HEADERS = ("ETag", "X-Linked-ETag", "X-Repo-Commit")


class SiteFailed(Exception):
    """The site is given up. Neither the hub's client nor `datasets` knows this type, so neither tries again."""


class Attempts:
    """Failed requests by URL. The third failure of one URL without a whole answer between ends all requests.

    A failure is no data for `silence_s`, a broken connection, an answer cut short, or HTTP 5xx. A site that asks for
    patience (HTTP 429, Retry-After), or to write outside the cache, is given up at once.
    """

    def __init__(self, url: str, silence_s: float) -> None:
        self.site, self.silence_s = site(url), silence_s
        self.failed: Counter[str] = Counter()
        self.latest: tuple[BaseException | None, str] = (None, "")
        self.given_up = False
        self.lock = threading.Lock()

    def bound_client(self) -> None:
        """Every later request of the hub's client in this process is counted here."""
        from huggingface_hub import get_session, set_client_factory

        attempts, kind = self, type(get_session())

        class Client(kind):  # type: ignore[valid-type, misc]
            def send(self, request: Any, **options: Any) -> Any:
                url = str(request.url)
                if site(url) == attempts.site:
                    attempts.refuse_paths(url, "revision", unquote(urlsplit(url).path).strip("/"))
                asked = request.extensions.get("timeout", {})  # None is no limit
                request.extensions["timeout"] = {
                    part: min(asked.get(part) or attempts.silence_s, attempts.silence_s)
                    for part in ("connect", "read", "write", "pool")
                }
                with attempts.counted(url):
                    response = super().send(request, **options)
                attempts.judge(url, response)
                receive = response.iter_raw

                def iter_raw(chunk_size: int | None = None) -> Iterator[bytes]:
                    with attempts.counted(url):
                        yield from receive(chunk_size)
                    attempts.succeeded(url)

                response.iter_raw = iter_raw  # the body of a streamed answer comes after this
                if response.is_success and not options.get("stream"):
                    attempts.succeeded(url)
                return response

        set_client_factory(lambda: Client(follow_redirects=True))

    def explain(self, error: BaseException) -> str:
        """One line for what a load ended with: the failed request below it, where there is one."""
        cause: BaseException | None = error
        while cause is not None:
            if self.given_up or cause is self.latest[0]:
                return self.latest[1]
            response = getattr(cause, "response", None)
            if response is not None:
                return f"{self.shown(str(response.request.url))}: HTTP {response.status_code}"
            cause = cause.__cause__ or cause.__context__
        return one_line(error)

    @contextmanager
    def counted(self, url: str) -> Iterator[None]:
        """A request, or the rest of an answer's body."""
        if self.given_up:
            raise SiteFailed(url)
        try:
            yield
        except Exception as error:  # of the client's many types
            silent = "Timeout" in type(error).__name__
            self.failure(url, f"no data for {self.silence_s:g} s" if silent else one_line(error), error)
            raise

    def judge(self, url: str, response: Any) -> None:
        for name in NAMING_HEADERS if response.request.method == "HEAD" else ():
            self.refuse_paths(url, name, response.headers.get(name, "").removeprefix("W/").strip('"'))
        status = response.status_code
        if status == 429 or status >= 500:
            self.failure(url, f"HTTP {status}", for_good=status == 429 or "Retry-After" in response.headers)

    def refuse_paths(self, url: str, what: str, value: str) -> None:
        if value and not {"", ".."}.isdisjoint(value.split("/")):
            self.failure(url, f"refused, its {what} leads out of the cache", for_good=True)

    def failure(self, url: str, cause: str, error: Exception | None = None, *, for_good: bool = False) -> None:
        with self.lock:
            if not self.given_up:
                self.failed[url] += 1
                times = f", {self.failed[url]} times in a row" if self.failed[url] > 1 else ""
                self.latest = error, f"{self.shown(url)}: {cause}{times}"
                self.given_up = for_good or self.failed[url] >= ATTEMPTS
        if self.given_up:
            raise SiteFailed(url) from error

    def succeeded(self, url: str) -> None:
        with self.lock:
            self.failed.pop(url, None)

    def shown(self, url: str) -> str:
        """Without credentials and signatures; with the host only where a site sends its readers to another."""
        path = urlsplit(url).path
        return path if site(url) == self.site else site(url) + path
