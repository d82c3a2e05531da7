import json

import pytest
from tests.serve.conftest import ENDLESS, serve_run, wait_until

from polyhead.serve.limits import Limits

PATH = "/v1/completions"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.acceptance("E10")
def test_requests_above_the_queue_limit_are_refused(runs):
    with serve_run(runs["decoder"], max_num_seqs=2, limits=Limits(max_queue=4)) as client:
        service = client.service
        with client.hold_steps() as steps:
            sockets = [client.send(ENDLESS | {"seed": i}) for i in range(2)]
            wait_until(lambda: service.num_waiting + len(service.engine_thread.streams) >= 2)
            while service.engine_thread.num_running < 2:  # the second may come after the first step began
                steps.allow()
                steps.wait_blocked()
            sockets += [client.send(ENDLESS | {"seed": i}) for i in range(2, 6)]
            steps.allow()
            wait_until(lambda: service.num_waiting == 4)
            for _ in range(10):
                answer = client.ask(PATH, ENDLESS)
                assert answer.status_code == 429 and answer.headers["retry-after"] == "1"
                assert answer.json()["error"]["type"] == "rate_limit_error"
            with client.connect() as sock:
                body = json.dumps(ENDLESS).encode()
                head = POST + b"Content-Length: %d\r\n\r\n" % len(body)
                sock.sendall(head)
                answer = sock.recv(65536)
                assert b" 429 " in answer.split(b"\r\n")[0], "before the body, which is not read"
                sock.sendall(body + head + body)  # the connection can be used for the next request
                while answer.count(b"overloaded") < 2 and (piece := sock.recv(65536)):
                    answer += piece
                assert answer.count(b"HTTP/1.1 429") == 2
            assert client.ask("/tokenize", {"prompt": "dogs"}).status_code == 200
            assert service.num_waiting == 4
        for seed, sock in enumerate(sockets):
            with sock, sock.makefile("rb") as file:
                head = b"".join(iter(file.readline, b"\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].split()[0])
                (expected,) = client.run.generate([ENDLESS["prompt"]], seed=seed, max_new_tokens=30)
                assert json.loads(file.read(length))["choices"][0]["text"] == expected
        assert client.ask(PATH, ENDLESS).status_code == 200


@pytest.mark.acceptance("E10")
def test_queue_counts_texts_but_no_aborted_ones(runs):
    options = {"max_num_seqs": 8, "limits": Limits(max_queue=8)}
    with serve_run(runs["decoder"], **options) as client, client.hold_steps() as steps:
        thread, service = client.service.engine_thread, client.service
        first = client.send(ENDLESS | {"prompt": ["dogs"] * 8, "max_tokens": 40})
        steps.wait_entered()
        steps.allow()
        steps.wait_blocked()
        assert thread.num_running == 8 and service.num_waiting == 0
        body = ENDLESS | {"prompt": ["dogs"] * 4, "max_tokens": 2}
        sockets = [client.send(body)]
        wait_until(lambda: service.num_waiting == 4)
        sockets.append(client.send(body))
        wait_until(lambda: service.num_waiting == 8)
        assert b"polyhead_requests_waiting 8.0" in client.ask("/metrics").content
        answer = client.ask(PATH, body)
        assert answer.status_code == 429 and "8 texts are already queued" in answer.text
        first.close()
        wait_until(lambda: len(thread._inbox) == 2 + 8)
        assert service.num_waiting == 8
        steps.allow(1000)
        for sock in sockets:
            assert b"200 OK" in sock.recv(65536)
            sock.close()
        client.wait_idle()
