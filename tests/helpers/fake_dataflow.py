"""A Dataflow on loopback that records jobs: what Beam's client asks of the REST API, and no workers.

    with FakeDataflow() as service:
        run([..., f"--dataflow_endpoint={service.url}", "--no_auth"])
        service.job["environment"]

`states` are the states that a job goes through, one for each time it is asked for; the last one stays.
"""

from __future__ import annotations

import json
import threading
import time
import types
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# In place of the module `time` of Beam's client, which asks for the state every 5 s: it asks 50 times as often.
IMPATIENT = types.SimpleNamespace(time=time.time, sleep=lambda seconds: time.sleep(seconds / 50))
JOB_ID = "2026-01-31_12_00_00-1"
_NO_PERMISSION = {"error": {"code": 403, "message": "no permission", "status": "PERMISSION_DENIED"}}


class FakeDataflow:
    """The service; its attributes may be changed while it serves.

    Attributes:
        states: of the job, in turn.
        error: text of the one error message that the job has, or None.
        counters: what the steps of the job count, by name.
        job: as it was submitted, or empty.
        path: to which it was submitted.
        asked_for: states that somebody asked the job to take.
        questions: how often somebody asked for the job's state.
        rejects: whether jobs are rejected (403).
        is_lost: whether questions on jobs are rejected (403).
    """

    def __init__(self) -> None:
        self.states = ["JOB_STATE_RUNNING", "JOB_STATE_DONE"]
        self.error: str | None = None
        self.counters: dict[str, int] = {}
        self.job: dict[str, Any] = {}
        self.path = ""
        self.asked_for: list[int] = []
        self.questions = 0
        self.rejects = self.is_lost = False
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                if service.rejects:
                    self._answer(_NO_PERMISSION, 403)
                    return
                service.path = self.path.partition("?")[0]
                service.job = self._body()
                self._answer({**service._describe(), "clientRequestId": service.job["clientRequestId"]})

            def do_PUT(self) -> None:
                service.asked_for.append(self._body()["requestedState"])
                service.states = ["JOB_STATE_CANCELLED"]
                self._answer(service._describe())

            def do_GET(self) -> None:
                resource = self.path.partition("?")[0].rpartition("/")[2]
                if service.is_lost:
                    self._answer(_NO_PERMISSION, 403)
                elif resource == "messages":
                    self._answer({"jobMessages": service._messages()})
                elif resource == "metrics":
                    self._answer({"metrics": service._metrics()})
                else:
                    self._answer(service._describe())
                    service.states = service.states[1:] or service.states
                    service.questions += 1

            def _body(self) -> dict[str, Any]:
                body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                return body

            def _answer(self, value: object, status: int = 200) -> None:
                data = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # Beam tells a server for tests by this name.
        self.url = f"http://localhost:{self._server.server_port}"

    def __enter__(self) -> FakeDataflow:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _describe(self) -> dict[str, Any]:
        return {"id": JOB_ID, "name": self.job.get("name", ""), "currentState": self.states[0]}

    def _messages(self) -> list[dict[str, str]]:
        if self.error is None:
            return []
        return [
            {
                "id": "1",
                "time": "2026-01-31T12:00:01Z",
                "messageImportance": "JOB_MESSAGE_ERROR",
                "messageText": self.error,
            }
        ]

    def _metrics(self) -> list[dict[str, Any]]:
        return [
            {
                "name": {
                    "origin": "user",
                    "name": name,
                    "context": {"namespace": "tpudata", "step": "s1", **({"tentative": "true"} if tentative else {})},
                },
                "scalar": count,
            }
            for name, count in self.counters.items()
            for tentative in (True, False)
        ]
