"""Load for ChronosDB through both of its gRPC doors, with Locust.

    pip install -r tests/load/requirements.txt
    locust -f tests/load/locustfile.py                     # then http://localhost:8089
    locust -f tests/load/locustfile.py --headless -u 50 -r 50 -t 30s

CHRONOSDB_GRPC_TARGET says where the server is (default localhost:50051; unix:/path works too).
`--tags native` or `--tags envoy` keeps to one door. A refusal is an answer, counted under a name
of its own; whatever else is not an answer is a failure.
"""

import importlib
import os
import pathlib
import random
import sys
import tempfile
import time

import grpc
import grpc.experimental.gevent
from grpc_tools import protoc
from locust import User, constant, tag, task

# Locust's users are greenlets; without this one call would stop them all.
grpc.experimental.gevent.init_gevent()

TARGET = os.environ.get("CHRONOSDB_GRPC_TARGET", "localhost:50051")
PROTOS = pathlib.Path(__file__).resolve().parents[2] / "proto"
TIMEOUT_S = 2.0

# How many different users the load speaks for: each has a quota of its own.
IDENTITIES = 1000


def somebody():
    """Few ask often and are refused, most ask seldom."""
    return int(random.paretovariate(0.5)) % IDENTITIES


def compiled(*names):
    """The modules of these files below proto/, made by protoc in a folder of this process."""
    folder = tempfile.mkdtemp(prefix="chronosdb-protos-")
    well_known = pathlib.Path(protoc.__file__).parent / "_proto"
    files = [str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto")]
    arguments = ["protoc", f"-I{PROTOS}", f"-I{well_known}", f"--python_out={folder}"]
    if protoc.main([*arguments, f"--grpc_python_out={folder}", *files]) != 0:
        sys.exit(f"protoc could not compile {PROTOS}")
    sys.path.insert(0, folder)
    return [importlib.import_module(name) for name in names]


native, native_grpc, envoy, envoy_grpc = compiled(
    "chronosdb.v1.rate_limiter_pb2",
    "chronosdb.v1.rate_limiter_pb2_grpc",
    "envoy.service.ratelimit.v3.rls_pb2",
    "envoy.service.ratelimit.v3.rls_pb2_grpc",
)


class Caller(User):
    """One connection, asking without a pause: an application through one door, Envoy through the other."""

    host = TARGET
    wait_time = constant(0)

    def on_start(self):
        # Without the option all users of a process would share one connection.
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.insecure_channel(TARGET, options=options)
        self.native = native_grpc.RateLimiterStub(self.channel)
        self.envoy = envoy_grpc.RateLimitServiceStub(self.channel)

    def on_stop(self):
        self.channel.close()

    @tag("native")
    @task
    def check_quota(self):
        request = native.CheckQuotaRequest(
            user_id=f"user-{somebody()}",
            api_key="load",
            max_requests=100,
            window_seconds=1,
        )
        self.measure("CheckQuota", self.native.CheckQuota, request, lambda answer: answer.allowed)

    @tag("envoy")
    @task
    def should_rate_limit(self):
        request = envoy.RateLimitRequest(domain="edge")
        entry = request.descriptors.add().entries.add()
        entry.key, entry.value = "remote_address", f"10.0.{somebody()}.1"
        allowed = envoy.RateLimitResponse.OK
        decided = lambda answer: answer.overall_code == allowed
        self.measure("ShouldRateLimit", self.envoy.ShouldRateLimit, request, decided)

    def measure(self, name, call, request, is_allowed):
        """Makes the call and reports it: its time, and whether it was an answer."""
        started = time.perf_counter()
        error, length = None, 0
        try:
            answer = call(request, timeout=TIMEOUT_S)
            name = f"{name} ({'allowed' if is_allowed(answer) else 'refused'})"
            length = answer.ByteSize()
        except grpc.RpcError as failure:
            error = failure
        self.environment.events.request.fire(
            request_type="gRPC",
            name=name,
            response_time=(time.perf_counter() - started) * 1000,
            response_length=length,
            exception=error,
            context={},
        )
