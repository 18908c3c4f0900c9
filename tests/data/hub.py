"""The Hugging Face hub on loopback: what its API answers and its files, as files of a folder."""

import http.server
import json
import time
import zlib
from functools import partial

from tests.data.conftest import write

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.ThreadingHTTPServer):
    """Serves `folder`, also files of plain sites. `fault` ("silent", or a status such as "500")
    answers all requests; `requests` lists "<method> <path>".
    """

    daemon_threads = True

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), partial(Handler, directory=folder))
        self.folder = folder
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.fault = ""
        self.requests = []

    def write(self, path, content):
        write(self.folder, path, content)

    def write_dataset(self, repository, files, revision=COMMIT):
        """A dataset at COMMIT, for which `revision` stands: the content of each file by its name."""
        api, tree = f"api/datasets/{repository}", []
        for name, content in files.items():
            self.write(f"datasets/{repository}/resolve/{COMMIT}/{name}", content)
            tree.append({"type": "file", "oid": "0", "path": name, "size": len(content)})
        self.write(f"{api}/revision/{revision}", json.dumps({"id": repository, "sha": COMMIT}))
        self.write(f"{api}/tree/{COMMIT}", json.dumps(tree))


class Handler(http.server.SimpleHTTPRequestHandler):
    def send_head(self):
        self.server.requests.append(f"{self.command} {self.path}")
        if self.server.fault == "silent":
            time.sleep(1)  # longer than the client waits
        elif self.server.fault:
            self.send_error(int(self.server.fault))
        else:
            return super().send_head()
        return None

    def end_headers(self):
        self.send_header("ETag", f'"{zlib.crc32(self.path.encode())}"')
        self.send_header("X-Repo-Commit", COMMIT)
        super().end_headers()
